/** Questions about the parts of a message, and pieces of text for a person to read. */
import type { Message, Part } from "./types";

export function textOf(parts: readonly Part[]): string {
  return parts.map((part) => (part.type === "text" ? part.text : "")).join("");
}

export function reasoningOf(parts: readonly Part[]): string {
  return parts.map((part) => (part.type === "reasoning" ? part.text : "")).join("");
}

export function filesOf(parts: readonly Part[]): Extract<Part, { type: "file" }>[] {
  return parts.filter((part) => part.type === "file");
}

const TITLE = 60;

/** A title for a chat from its first message: the first line that says something. */
export function titleFrom(parts: readonly Part[]): string {
  const lines = textOf(parts)
    .split("\n")
    .map((line) => line.replace(/^[\s#>*`-]+/, "").trim());
  const line = lines.find((text) => text !== "") ?? filesOf(parts)[0]?.name ?? "";
  if (line.length <= TITLE) return line;
  const cut = line.slice(0, TITLE);
  const word = cut.lastIndexOf(" ");
  return `${word > TITLE / 2 ? cut.slice(0, word) : cut}…`;
}

/** Whether an answer has nothing in it that anybody could want to keep. */
export function isEmpty(message: Message): boolean {
  return message.parts.every((part) => part.type !== "tool_call" && part.text.trim() === "");
}

/** Whether a message answers with text of its own, reasoning apart. */
export function hasText(message: Message): boolean {
  return textOf(message.parts).trim() !== "";
}
