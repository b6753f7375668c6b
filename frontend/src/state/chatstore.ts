/**
 * Where chats are kept: one interface, and the choice between its two implementations.
 *
 * A page that comes from a server of ours keeps them there; elsewhere the browser does.
 */
import type { Chat, ChatSummary, ChatTree, Message, Preset } from "@/core/types";
import { browserChats } from "./browserchats";
import { serverChats } from "./serverchats";
import { isHome, useSession } from "./session";

export type ChatChange = Partial<Pick<Chat, "title" | "settings" | "pinned" | "active">>;

export interface SearchHit {
  id: string;
  title: string;
  message: string | null;
  pieces: { text: string; hit: boolean }[];
}

/** Every method rejects with what went wrong; each may be repeated. */
export interface ChatStore {
  /** `memory`: nothing outlives the page, since the browser refuses to store. */
  readonly kind: "server" | "browser" | "memory";
  list(): Promise<ChatSummary[]>;
  /** Null: there is no such chat. */
  get(id: string): Promise<ChatTree | null>;
  create(chat: Chat): Promise<void>;
  change(id: string, change: ChatChange): Promise<void>;
  remove(id: string): Promise<void>;
  putMessage(chat: string, message: Message, active: boolean): Promise<void>;
  removeMessage(chat: string, id: string): Promise<void>;
  search(words: string): Promise<SearchHit[]>;
  all(): Promise<ChatTree[]>;
  /** Takes chats over under new ids where theirs are taken; returns how many. */
  take(chats: ChatTree[]): Promise<number>;
  presets(): Promise<Preset[]>;
  putPreset(preset: Preset): Promise<void>;
  removePreset(id: string): Promise<void>;
}

export async function chatStore(): Promise<ChatStore> {
  return isHome(useSession.getState()) ? serverChats : browserChats();
}
