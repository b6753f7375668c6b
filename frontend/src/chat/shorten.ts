/** The way out of a full context: the oldest messages stay in the chat, but are not sent. */
import { estimateTokens, leaveOut } from "@/core/estimate";
import { overflowNumbers } from "@/core/failure";
import { filesOf, textOf } from "@/core/parts";
import { pathTo } from "@/core/tree";
import type { Message } from "@/core/types";
import { sent } from "@/core/wire";
import { findChat } from "@/state/chats";
import { sendFrom } from "@/state/talk";
import { again } from "@/state/turns";

/** Of the context, what the prompt may take; the rest is for the answer. */
const SHARE = 0.7;

/** Leaves out as much as it takes, and asks again. `error` is what the server said. */
export function shorten(chatId: string, failedId: string, error: string): void {
  const found = findChat(chatId);
  const parent = found?.tree.messages[failedId]?.parent;
  if (!found || parent == null) return;
  const path = sent(pathTo(found.tree, parent), found.chat.settings.first);
  const sizes = path.map(sizeOf);
  const guess = sizes.reduce((sum, size) => sum + size, 0);
  const numbers = overflowNumbers(error);
  // Our guesses are scaled by what the server has counted.
  const room = numbers ? (guess * numbers.context * SHARE) / numbers.prompt : guess / 2;
  const users = path.map((message) => message.role === "user");
  const first = path[leaveOut(sizes, users, room)];
  if (first) sendFrom(chatId, first.id);
  again(chatId, failedId);
}

function sizeOf(message: Message): number {
  const files = filesOf(message.parts).map((file) => file.text);
  return estimateTokens([textOf(message.parts), ...files].join("\n"));
}
