/**
 * The chats that are open: what is on the screen changes at once, and is written behind it.
 *
 * Writes of one chat keep their order. One that fails because the store does not answer is tried
 * again until it does; the chat shows that it is not saved yet. One that is refused is given up.
 */
import { create } from "zustand";
import { HttpError } from "@/api/http";
import { newId } from "@/core/ids";
import {
  EMPTY_TREE,
  showing,
  type Tree,
  treeOfChat,
  withChanged,
  withMessage,
  without,
} from "@/core/tree";
import {
  type Chat,
  type ChatSettings,
  DEFAULT_SETTINGS,
  type Message,
  type Part,
  type Role,
} from "@/core/types";
import { type ChatChange, type ChatStore, chatStore } from "./chatstore";
import { chatsChanged } from "./queries";

export interface OpenChat {
  chat: Chat;
  tree: Tree;
}

interface ChatsState {
  open: Record<string, OpenChat>;
  /** Chats that could not be opened: they do not exist, or the store said why. */
  problems: Record<string, string | null>;
  /** Chats with changes that are not stored yet, and why. */
  unsaved: Record<string, string>;
}

export const useChats = create<ChatsState>()(() => ({ open: {}, problems: {}, unsaved: {} }));

const now = () => Date.now();

export function findChat(id: string): OpenChat | undefined {
  return useChats.getState().open[id];
}

/** Reads a chat from its store unless it is open. */
export async function openChat(id: string): Promise<void> {
  if (findChat(id)) return;
  try {
    const found = await (await chatStore()).get(id);
    if (!found) {
      setProblem(id, null);
      return;
    }
    const { messages: _, ...chat } = found;
    put(id, { chat, tree: treeOfChat(found) });
  } catch (error) {
    setProblem(id, error instanceof Error ? error.message : String(error));
  }
}

function setProblem(id: string, problem: string | null): void {
  useChats.setState(({ problems }) => ({ problems: { ...problems, [id]: problem } }));
}

export function forgetProblem(id: string): void {
  useChats.setState(({ problems }) => {
    const { [id]: _, ...rest } = problems;
    return { problems: rest };
  });
}

function put(id: string, chat: OpenChat): void {
  useChats.setState(({ open }) => ({ open: { ...open, [id]: chat } }));
}

export function newChat(title: string, settings: ChatSettings = DEFAULT_SETTINGS): string {
  const id = newId();
  const chat: Chat = {
    id,
    title,
    pinned: false,
    settings,
    active: null,
    created_at_ms: now(),
    updated_at_ms: now(),
  };
  put(id, { chat, tree: EMPTY_TREE });
  save(id, (store) => store.create(chat));
  return id;
}

/** Changes title, settings or pin, also of a chat that is not open. */
export function changeChat(id: string, change: ChatChange): void {
  const found = findChat(id);
  if (found) put(id, { ...found, chat: { ...found.chat, ...change } });
  save(id, (store) => store.change(id, change));
}

export async function deleteChat(id: string): Promise<void> {
  await (await chatStore()).remove(id);
  useChats.setState(({ open }) => {
    const { [id]: _, ...rest } = open;
    return { open: rest };
  });
  chatsChanged();
}

export function newMessage(role: Role, parent: string | null, parts: Part[]): Message {
  const at = now();
  return {
    id: newId(),
    parent,
    role,
    parts,
    meta: {},
    created_at_ms: at,
    updated_at_ms: at,
  };
}

/** Adds a message, or replaces the one of the same id. It becomes what is shown if it is new. */
export function putMessage(chatId: string, message: Message): void {
  const found = findChat(chatId);
  if (!found) return;
  const known = message.id in found.tree.messages;
  const tree = known ? withChanged(found.tree, message) : withMessage(found.tree, message);
  put(chatId, { ...found, tree });
  save(chatId, (store) => store.putMessage(chatId, message, tree.active === message.id));
}

/** Stores the state of an answer that still grows, unless earlier writes are under way. */
export function saveMeanwhile(chatId: string, message: Message): void {
  if (!queues.has(chatId)) save(chatId, (store) => store.putMessage(chatId, message, true), true);
}

export function removeMessage(chatId: string, id: string): void {
  const found = findChat(chatId);
  if (!found) return;
  const tree = without(found.tree, id);
  put(chatId, { ...found, tree });
  save(chatId, async (store) => {
    await store.removeMessage(chatId, id);
    if (tree.active !== null) await store.change(chatId, { active: tree.active });
  });
}

/** Shows the branch through a message. */
export function showBranch(chatId: string, id: string): void {
  const found = findChat(chatId);
  if (!found) return;
  const tree = showing(found.tree, id);
  put(chatId, { ...found, tree });
  save(chatId, (store) => store.change(chatId, { active: tree.active }), true);
}

// ---- writing behind ----

type Write = (store: ChatStore) => Promise<void>;

const queues = new Map<string, Promise<void>>();
const RETRY_MS = [500, 2000, 5000, 15_000];

/** `quiet`: the list of chats shows nothing of this change. */
function save(id: string, write: Write, quiet = false): void {
  const before = queues.get(id) ?? Promise.resolve();
  const task = before
    .then(() => persist(id, write))
    .then(() => {
      if (queues.get(id) === task) queues.delete(id);
      if (!quiet) chatsChanged();
    });
  queues.set(id, task);
}

async function persist(id: string, write: Write): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      await write(await chatStore());
      if (id in useChats.getState().unsaved) setUnsaved(id, null);
      return;
    } catch (error) {
      setUnsaved(id, error instanceof Error ? error.message : String(error));
      const refused = error instanceof HttpError && error.status >= 400 && error.status < 500;
      if (refused && error.status !== 401 && error.status !== 429) return;
      await new Promise((done) => setTimeout(done, RETRY_MS[attempt] ?? RETRY_MS.at(-1)));
    }
  }
}

function setUnsaved(id: string, reason: string | null): void {
  useChats.setState(({ unsaved }) => {
    const { [id]: _, ...rest } = unsaved;
    return { unsaved: reason === null ? rest : { ...rest, [id]: reason } };
  });
}
