/** What a person does in a chat, put together from chats and turns. */
import { titleFrom } from "@/core/parts";
import { pathTo } from "@/core/tree";
import type { ChatSettings, Message, Part } from "@/core/types";
import { changeChat, findChat, newChat, newMessage, putMessage, removeMessage } from "./chats";
import { answer, runningIn, stop } from "./turns";

/** Sends a message at the end of what is shown; without a chat in a new one. Returns the chat's id. */
export function send(chatId: string | null, parts: Part[], settings?: ChatSettings): string {
  const id = chatId ?? newChat(titleFrom(parts), settings);
  const found = findChat(id);
  if (!found || runningIn(id)) return id;
  if (found.chat.title === "") changeChat(id, { title: titleFrom(parts) });
  const message = newMessage("user", found.tree.active, parts);
  putMessage(id, message);
  answer(id, message.id);
  return id;
}

/** Asks differently: a branch beside the old message, with its own answer. */
export function askAgain(chatId: string, old: Message, text: string): void {
  const files = old.parts.filter((part) => part.type === "file");
  const message = newMessage("user", old.parent, [...files, { type: "text", text }]);
  putMessage(chatId, message);
  answer(chatId, message.id);
}

/** Changes the words of an answer: a branch beside it, so nothing is lost. */
export function rewrite(chatId: string, old: Message, text: string): void {
  const others = old.parts.filter((part) => part.type !== "text" && part.type !== "reasoning");
  const message = newMessage("assistant", old.parent, [{ type: "text", text }, ...others]);
  const { stats: _, failure: __, ...meta } = old.meta;
  putMessage(chatId, { ...message, meta: { ...meta, edited: true } });
}

/** Removes a message with all that follows it. */
export function remove(chatId: string, id: string): void {
  const running = runningIn(chatId);
  if (running) stop(running.messageId);
  removeMessage(chatId, id);
}

/** Sends only what comes from `first` on. */
export function sendFrom(chatId: string, first: string | null): void {
  const found = findChat(chatId);
  if (found) changeChat(chatId, { settings: { ...found.chat.settings, first } });
}

/** A new chat that begins with a copy of the branch up to a message. */
export function branchOff(chatId: string, upTo: string, title: string): string {
  const found = findChat(chatId);
  const id = newChat(title, found?.chat.settings);
  if (!found) return id;
  let parent: string | null = null;
  for (const old of pathTo(found.tree, upTo)) {
    const copy: Message = { ...newMessage(old.role, parent, old.parts), meta: old.meta };
    putMessage(id, copy);
    parent = copy.id;
  }
  changeChat(id, { settings: { ...found.chat.settings, first: null } });
  return id;
}
