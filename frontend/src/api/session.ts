/** Who we are to our own server; a server without this route is not ours. */
import type { Described } from "./described";
import { HttpError, jsonBody, own } from "./http";

export type Session = Described["_Session"];

/** Null: the server that this page comes from is not ours, or older than the page. */
export async function getSession(signal: AbortSignal): Promise<Session | null> {
  try {
    return await own<Session>("/api/session", { signal });
  } catch (error) {
    if (error instanceof HttpError && (error.status === 404 || error.status === 405)) return null;
    throw error;
  }
}

/** Raises HttpError: 401 for a wrong key, 429 after too many. */
export function login(key: string): Promise<Session> {
  return own<Session>("/api/session", jsonBody("POST", { key }));
}

export function logout(): Promise<Session> {
  return own<Session>("/api/session", { method: "DELETE" });
}
