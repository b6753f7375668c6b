/** Which server the page talks to, and whether it is ours and has let us in. */
import { create } from "zustand";
import type { Server } from "@/api/http";
import { getSession, login, logout, type Session } from "@/api/session";
import { ask } from "@/desktop/shell";
import { usePrefs } from "./prefs";

interface SessionState {
  /** `unknown` until asked; null: the page does not come from a server of ours. */
  session: Session | null | "unknown";
  /** The last question got no answer. */
  unreachable: boolean;
}

export const useSession = create<SessionState>()(() => ({
  session: "unknown",
  unreachable: false,
}));

export async function checkSession(signal = AbortSignal.timeout(15_000)): Promise<void> {
  try {
    const session = await getSession(signal);
    const locked = session?.login_required && !session.logged_in;
    // The app's window knows a token that stands for the key of the server it has started.
    const token = locked ? await ask("token") : null;
    useSession.setState({
      session: typeof token === "string" ? await login(token) : session,
      unreachable: false,
    });
  } catch {
    useSession.setState({ unreachable: true });
  }
}

export async function logIn(key: string): Promise<void> {
  useSession.setState({ session: await login(key), unreachable: false });
}

export async function logOut(): Promise<void> {
  useSession.setState({ session: await logout() });
}

/** The server answered 401: what we believed about the session is out of date. */
export function sessionLost(): void {
  void checkSession();
}

/** Whether the page comes from a server of ours that lets us in: it keeps chats and tells figures. */
export function isHome({ session }: SessionState): boolean {
  return (
    session !== "unknown" && session !== null && (!session.login_required || session.logged_in)
  );
}

export function needsLogin({ session }: SessionState): boolean {
  return session !== "unknown" && session !== null && session.login_required && !session.logged_in;
}

/** Trims what people paste: spaces, slashes at the end, the name of a route. */
export function cleanBase(text: string): string {
  return text
    .trim()
    .replace(/\/+$/, "")
    .replace(/\/(chat\/completions|completions|models)$/, "")
    .replace(/\/+$/, "");
}

export function currentServer(): Server {
  const { base, key } = usePrefs.getState();
  const { session } = useSession.getState();
  if (base !== "") return { base, key: key || null, own: false };
  return { base: `${location.origin}/v1`, key: null, own: session !== null };
}
