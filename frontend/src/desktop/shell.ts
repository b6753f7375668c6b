/**
 * The window of the desktop app around this page, if there is one.
 *
 * The window asks `window.colibriShell` a few times a second for what the page has to say, and hands
 * it what it has to tell (contract: app/colibri_app/bridge.py). In a browser nobody asks, and nothing
 * here does anything.
 */

interface Said {
  id: number;
  name: string;
  args: Record<string, unknown>;
}

export type Command = "new_chat" | "attach" | "welcome";

export interface WindowNotice {
  code: string;
  values: Record<string, number>;
}

interface Listener {
  command: (name: Command) => void;
  notice: (notice: WindowNotice) => void;
}

declare global {
  interface Window {
    colibriShell?: { take: () => Said[]; tell: (message: unknown) => void };
  }
}

const MARK = "colibri.shell";
/** A person may look at a dialog for long; the window that went away answers never. */
const ANSWER_MS = 30 * 60_000;

let said: Said[] = [];
let next = 1;
let told: unknown[] = [];
let listener: Listener | null = null;
const waiting = new Map<number, (value: unknown) => void>();

/** Whether the page is in the app's window. Known before the window has said a word. */
export function inWindow(): boolean {
  return window.colibriShell !== undefined;
}

/** Begins to listen to the window, if the address or this tab's memory says that there is one. */
export function startShell(): void {
  try {
    if (new URLSearchParams(location.search).get("shell") === "1")
      sessionStorage.setItem(MARK, "1");
    if (sessionStorage.getItem(MARK) !== "1") return;
  } catch {
    return; // without storage there is no window of ours either
  }
  window.colibriShell = {
    take() {
      const now = said;
      said = [];
      return now;
    },
    tell(message) {
      told.push(message);
      hear();
    },
  };
}

/** Says something that expects no answer. */
export function say(name: string, args: Record<string, unknown> = {}): void {
  if (inWindow()) said.push({ id: 0, name, args });
}

/** Asks the window; null where there is none, or no answer. */
export function ask(name: string, args: Record<string, unknown> = {}): Promise<unknown> {
  if (!inWindow()) return Promise.resolve(null);
  const id = next++;
  said.push({ id, name, args });
  return new Promise((resolve) => {
    waiting.set(id, resolve);
    setTimeout(() => {
      if (waiting.delete(id)) resolve(null);
    }, ANSWER_MS);
  });
}

/** Takes the window's commands and notices, those included that came before; ends with the result. */
export function listen(to: Listener): () => void {
  listener = to;
  hear();
  return () => {
    if (listener === to) listener = null;
  };
}

function hear(): void {
  const kept: unknown[] = [];
  for (const message of told) {
    if (!handle(message)) kept.push(message);
  }
  told = kept;
}

/** False: nobody is there yet to take it. What is not understood counts as taken. */
function handle(message: unknown): boolean {
  if (typeof message !== "object" || message === null || !("kind" in message)) return true;
  if (message.kind === "answer" && "id" in message && typeof message.id === "number") {
    waiting.get(message.id)?.("value" in message ? message.value : null);
    waiting.delete(message.id);
    return true;
  }
  if (!listener) return false;
  if (message.kind === "command" && "name" in message) {
    listener.command(message.name as Command);
  } else if (message.kind === "notice" && "code" in message && typeof message.code === "string") {
    const values = "values" in message ? message.values : {};
    listener.notice({ code: message.code, values: (values ?? {}) as Record<string, number> });
  }
  return true;
}

let painted = false;

/** Tells the window that something stands on the page; once, and after it has been painted. */
export function sayReady(): void {
  if (painted) return;
  painted = true;
  const ready = () => say("ready");
  // A hidden window paints nothing, and is none the worse for it.
  if (document.visibilityState === "hidden") ready();
  else requestAnimationFrame(() => requestAnimationFrame(ready));
}

/** Saves a text through the window's own dialog. False: there is no window, save it otherwise. */
export async function saveInWindow(
  name: string,
  text: string,
): Promise<{ path: string | null; problem: string | null } | false> {
  if (!inWindow()) return false;
  const answer = await ask("save", { name, text });
  if (typeof answer !== "object" || answer === null) return { path: null, problem: null };
  const { path, problem } = answer as { path?: unknown; problem?: unknown };
  return {
    path: typeof path === "string" ? path : null,
    problem: typeof problem === "string" ? problem : null,
  };
}
