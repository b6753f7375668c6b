/** Every key of the page: what it is, and what it does. The sheet and the handler read this list. */
import { findChat } from "@/state/chats";
import { setPrefs, usePrefs } from "@/state/prefs";
import { again, runningIn, stop } from "@/state/turns";
import { openSheet, useUi } from "@/state/ui";

export interface Place {
  chatId: string | null;
  go: (path: string) => void;
}

export interface Shortcut {
  /** Also the key of its words: `shortcuts.<name>`. */
  name:
    | "palette"
    | "newChat"
    | "search"
    | "focus"
    | "stop"
    | "regenerate"
    | "settings"
    | "runtime"
    | "theme"
    | "sheet";
  keys: string;
  /** Works while something is being typed. */
  typing: boolean;
  /** False: it does not apply now, and the key keeps its usual meaning. */
  run: (place: Place) => boolean;
}

const done = (_: unknown): true => true;

export const SHORTCUTS: readonly Shortcut[] = [
  { name: "palette", keys: "Mod+K", typing: true, run: () => done(openSheet("palette")) },
  {
    name: "newChat",
    keys: "Mod+Shift+O",
    typing: true,
    run: ({ go }) => done(go("/chat")),
  },
  {
    name: "search",
    keys: "Mod+Shift+F",
    typing: true,
    run: () => focus("chat-search"),
  },
  { name: "focus", keys: "/", typing: false, run: () => focus("composer") },
  {
    name: "stop",
    keys: "Escape",
    typing: true,
    run: ({ chatId }) => {
      const turn = chatId === null ? undefined : runningIn(chatId);
      if (!turn || useUi.getState().sheet !== null) return false;
      stop(turn.messageId);
      return true;
    },
  },
  {
    name: "regenerate",
    keys: "Mod+Shift+E",
    typing: true,
    run: ({ chatId }) => {
      const tree = chatId === null ? undefined : findChat(chatId)?.tree;
      const leaf = tree?.active ? tree.messages[tree.active] : undefined;
      if (chatId === null || leaf?.role !== "assistant" || runningIn(chatId)) return false;
      again(chatId, leaf.id);
      return true;
    },
  },
  {
    name: "settings",
    keys: "Mod+.",
    typing: true,
    run: () => done(openSheet("chat-settings")),
  },
  {
    name: "runtime",
    keys: "Mod+Shift+L",
    typing: true,
    run: () => done(setPrefs({ runtimeOpen: !usePrefs.getState().runtimeOpen })),
  },
  {
    name: "theme",
    keys: "Mod+Shift+Y",
    typing: true,
    run: () => {
      const dark = document.documentElement.dataset["theme"] === "dark";
      return done(setPrefs({ theme: dark ? "light" : "dark" }));
    },
  },
  { name: "sheet", keys: "?", typing: false, run: () => done(openSheet("shortcuts")) },
];

function focus(id: string): boolean {
  const element = document.getElementById(id);
  element?.focus();
  return element !== null;
}

/** Whether an event is the press of these keys. */
export function pressed(
  keys: string,
  event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "shiftKey" | "altKey">,
): boolean {
  const names = keys.split("+");
  const key = names.at(-1) ?? "";
  const mod = names.includes("Mod");
  if (event.altKey || mod !== (event.ctrlKey || event.metaKey)) return false;
  // A sign such as `?` needs Shift on some keyboards and not on others.
  const sign = key.length === 1 && !/[a-z0-9]/i.test(key);
  if (!sign && names.includes("Shift") !== event.shiftKey) return false;
  return event.key.toLowerCase() === key.toLowerCase();
}
