/**
 * Requests to a server, and what its refusals say.
 *
 * A `Server` is the place that the page talks to: our own, which also serves the page, or any other
 * that speaks the OpenAI dialect. Keys go into headers, never into addresses.
 */
import type { ErrorAnswer } from "@/core/failure";

export interface Server {
  /** Ends in `/v1` or whatever stands before `/models`; no slash at the end. */
  base: string;
  key: string | null;
  /** It is the one that serves this page, and ours. */
  own: boolean;
}

/** An answer with an error status. */
export class HttpError extends Error {
  constructor(readonly answer: ErrorAnswer) {
    super(answer.message);
  }

  get status(): number {
    return this.answer.status;
  }
}

/** Raises HttpError for an error status, and what `fetch` raises if nothing answers. */
export async function request(
  url: string,
  init: RequestInit,
  key: string | null,
): Promise<Response> {
  const headers = new Headers(init.headers);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  if (typeof init.body === "string") headers.set("Content-Type", "application/json");
  const response = await fetch(url, { ...init, headers });
  if (!response.ok) throw new HttpError(await errorOf(response));
  return response;
}

/** JSON of a route of our own server; `path` starts with a slash. */
export async function own<T>(path: string, init: RequestInit = {}): Promise<T> {
  const response = await request(path, init, null);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

export function jsonBody(method: string, value: unknown): RequestInit {
  return { method, body: JSON.stringify(value) };
}

/** What an answer with an error status says. */
export async function errorOf(response: Response): Promise<ErrorAnswer> {
  const { message, code, commands } = readError(await response.text().catch(() => ""));
  const wait = Number(response.headers.get("retry-after") ?? Number.NaN);
  return {
    status: response.status,
    message: message || `${response.status} ${response.statusText}`.trim(),
    code,
    requestId: response.headers.get("x-request-id"),
    retryAfterSeconds: Number.isFinite(wait) ? wait : null,
    ...(commands.length > 0 && { commands }),
  };
}

interface ErrorBody {
  message: string;
  code: string | null;
  commands: string[];
}

const NO_ERROR: ErrorBody = { message: "", code: null, commands: [] };

/** The message of an error body, in the shapes that are about; plain text as it is, a page not. */
function readError(body: string): ErrorBody {
  try {
    const data: unknown = JSON.parse(body);
    if (typeof data !== "object" || data === null) return NO_ERROR;
    const error = "error" in data ? data.error : data;
    if (typeof error === "string") return { ...NO_ERROR, message: error };
    if (typeof error !== "object" || error === null) return NO_ERROR;
    const message = "message" in error ? error.message : "detail" in error ? error.detail : "";
    const code = "code" in error ? error.code : null;
    const commands = "commands" in error && Array.isArray(error.commands) ? error.commands : [];
    return {
      message: typeof message === "string" ? message : "",
      code: typeof code === "string" ? code : null,
      commands: commands.filter((command) => typeof command === "string"),
    };
  } catch {
    return { ...NO_ERROR, message: body.trimStart().startsWith("<") ? "" : body.slice(0, 500) };
  }
}
