/** The chats that our own server keeps. Shapes and limits: docs/dashboard.md. */
import type { ChatTree, Message, Preset } from "@/core/types";
import type { Described } from "./described";
import { jsonBody, own } from "./http";

/** A chat without its messages, as lists have it; `messages` is their number. */
export type ChatRow = Described["Chat"];
export type ChatPage = Described["_ChatList"];

export interface Hit {
  chat: { id: string; title: string };
  message: string | null;
  pieces: { text: string; hit: boolean }[];
}

export type ChatChange = Partial<Pick<ChatTree, "title" | "settings" | "pinned" | "active">>;

const at = (id: string) => `/api/chats/${encodeURIComponent(id)}`;

export function listChats(before: string | null, limit: number): Promise<ChatPage> {
  const query = new URLSearchParams({ limit: String(limit), ...(before && { before }) });
  return own(`/api/chats?${query}`);
}

export function getChat(id: string): Promise<unknown> {
  return own(at(id));
}

export function createChat(chat: {
  id: string;
  title: string;
  settings: object;
  pinned: boolean;
}): Promise<unknown> {
  return own("/api/chats", jsonBody("POST", chat));
}

export function changeChat(id: string, change: ChatChange): Promise<unknown> {
  return own(at(id), jsonBody("PATCH", change));
}

export function deleteChat(id: string): Promise<void> {
  return own(at(id), { method: "DELETE" });
}

export function putMessage(chat: string, message: Message, active: boolean): Promise<unknown> {
  const { id, parent, role, parts, meta } = message;
  const body = { parent, role, parts, meta, active };
  return own(`${at(chat)}/messages/${encodeURIComponent(id)}`, jsonBody("PUT", body));
}

export function deleteMessage(chat: string, id: string): Promise<unknown> {
  return own(`${at(chat)}/messages/${encodeURIComponent(id)}`, { method: "DELETE" });
}

export async function searchChats(words: string): Promise<Hit[]> {
  const query = new URLSearchParams({ q: words, limit: "20" });
  return (await own<{ hits: Hit[] }>(`/api/chats/search?${query}`)).hits;
}

export function exportChats(): Promise<{ chats: unknown[] }> {
  return own("/api/chats/export");
}

export function importChats(data: object): Promise<{ chats: ChatRow[] }> {
  return own("/api/chats/import", jsonBody("POST", data));
}

export async function listPresets(): Promise<Preset[]> {
  return (await own<{ presets: Preset[] }>("/api/presets")).presets;
}

export function putPreset({ id, name, settings }: Preset): Promise<unknown> {
  return own(`/api/presets/${encodeURIComponent(id)}`, jsonBody("PUT", { name, settings }));
}

export function deletePreset(id: string): Promise<void> {
  return own(`/api/presets/${encodeURIComponent(id)}`, { method: "DELETE" });
}
