/**
 * Chats that the browser keeps, in IndexedDB; in memory where that is refused.
 *
 * A row of the list and the chat itself are two entries, so that listing does not read every chat.
 */
import { createStore, delMany, get, getMany, keys, setMany } from "idb-keyval";
import { matches } from "@/core/exchange";
import { newId } from "@/core/ids";
import { listOf, treeOfChat, withMessage, without } from "@/core/tree";
import type { ChatSummary, ChatTree } from "@/core/types";
import type { ChatStore, SearchHit } from "./chatstore";
import { setPrefs, usePrefs } from "./prefs";

/** What is needed of a database. */
export interface Entries {
  keys(): Promise<string[]>;
  read<T>(names: string[]): Promise<(T | undefined)[]>;
  write(entries: [string, unknown][]): Promise<void>;
  remove(names: string[]): Promise<void>;
}

const row = (id: string) => `row/${id}`;
const whole = (id: string) => `chat/${id}`;

export function memoryEntries(): Entries {
  const entries = new Map<string, unknown>();
  return {
    keys: async () => [...entries.keys()],
    read: async <T>(names: string[]) => names.map((name) => entries.get(name) as T | undefined),
    write: async (list) => {
      for (const [name, value] of list) entries.set(name, structuredClone(value));
    },
    remove: async (names) => {
      for (const name of names) entries.delete(name);
    },
  };
}

function databaseEntries(): Entries {
  const store = createStore("colibri", "chats");
  return {
    keys: () => keys<string>(store),
    read: (names) => getMany(names, store),
    write: (list) => setMany(list, store),
    remove: (names) => delMany(names, store),
  };
}

let chosen: Promise<ChatStore> | null = null;

export function browserChats(): Promise<ChatStore> {
  chosen ??= choose();
  return chosen;
}

async function choose(): Promise<ChatStore> {
  try {
    const entries = databaseEntries();
    await get("probe", createStore("colibri", "chats"));
    return storeOver(entries, "browser");
  } catch {
    return storeOver(memoryEntries(), "memory");
  }
}

export function storeOver(entries: Entries, kind: "browser" | "memory"): ChatStore {
  async function read(id: string): Promise<ChatTree | null> {
    const [chat] = await entries.read<ChatTree>([whole(id)]);
    return chat ?? null;
  }

  function write(chat: ChatTree): Promise<void> {
    const summary: ChatSummary = { ...chat, messages: chat.messages.length };
    return entries.write([
      [row(chat.id), summary],
      [whole(chat.id), chat],
    ]);
  }

  async function change(id: string, how: (chat: ChatTree) => ChatTree): Promise<void> {
    const chat = await read(id);
    if (chat) await write({ ...how(chat), updated_at_ms: Date.now() });
  }

  async function all(): Promise<ChatTree[]> {
    const names = (await entries.keys()).filter((name) => name.startsWith("chat/"));
    const chats = await entries.read<ChatTree>(names);
    return chats.filter((chat) => chat !== undefined);
  }

  return {
    kind,
    all,
    get: read,
    async list() {
      const names = (await entries.keys()).filter((name) => name.startsWith("row/"));
      const rows = await entries.read<ChatSummary>(names);
      return rows.filter((entry) => entry !== undefined).sort(byPinAndTime);
    },
    async create(chat) {
      if ((await read(chat.id)) === null) await write({ ...chat, messages: [] });
    },
    change: (id, fields) => change(id, (chat) => ({ ...chat, ...fields })),
    remove: (id) => entries.remove([row(id), whole(id)]),
    putMessage: (id, message, active) =>
      change(id, (chat) => {
        const tree = withMessage(treeOfChat(chat), message);
        return { ...chat, messages: listOf(tree), active: active ? message.id : chat.active };
      }),
    removeMessage: (id, message) =>
      change(id, (chat) => {
        const tree = without(treeOfChat(chat), message);
        return { ...chat, messages: listOf(tree), active: tree.active };
      }),
    async search(words) {
      const found = (await all()).filter((chat) => matches(chat, words)).sort(byPinAndTime);
      return found.slice(0, 20).map((chat): SearchHit => {
        return { id: chat.id, title: chat.title, message: null, pieces: [] };
      });
    },
    async take(chats) {
      const taken = new Set((await all()).map((chat) => chat.id));
      for (const chat of chats) {
        await write(taken.has(chat.id) ? { ...chat, id: newId() } : chat);
      }
      return chats.length;
    },
    async presets() {
      return usePrefs.getState().presets;
    },
    async putPreset(preset) {
      const rest = usePrefs.getState().presets.filter(({ id }) => id !== preset.id);
      setPrefs({ presets: [...rest, preset] });
    },
    async removePreset(id) {
      setPrefs({ presets: usePrefs.getState().presets.filter((preset) => preset.id !== id) });
    },
  };
}

function byPinAndTime(a: ChatSummary | ChatTree, b: ChatSummary | ChatTree): number {
  return Number(b.pinned) - Number(a.pinned) || b.updated_at_ms - a.updated_at_ms;
}
