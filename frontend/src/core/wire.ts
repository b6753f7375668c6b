/** From a branch of messages to the body of `POST /v1/chat/completions`. */
import { filesOf, textOf } from "./parts";
import type { ChatSettings, Message, Part, Role } from "./types";

interface WireCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

export interface WireMessage {
  role: Role;
  content: string | null;
  tool_calls?: WireCall[];
  tool_call_id?: string;
}

export interface WireBody {
  model: string;
  messages: WireMessage[];
  stream: true;
  stream_options: { include_usage: true };
  temperature?: number;
  top_p?: number;
  max_tokens?: number;
  seed?: number;
  enable_thinking?: boolean;
  cache_slot?: number;
  continue_final_message?: true;
}

/** What asks a model to go on with an answer that was cut off. */
export const CONTINUE =
  "Continue your last answer exactly where it stopped. Do not repeat anything and do not comment.";

/** A fence that nothing inside the text can close. */
export function fenced(text: string, label: string): string {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${label}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

function userText(parts: readonly Part[]): string {
  const files = filesOf(parts).map((file) => `File: ${file.name}\n${fenced(file.text, "")}`);
  return [...files, textOf(parts)].filter((piece) => piece !== "").join("\n\n");
}

/** The part of a branch that is sent: from `first` on, if that message is on it. */
export function sent(path: readonly Message[], first: string | null): readonly Message[] {
  const start = path.findIndex((message) => message.id === first);
  return start > 0 ? path.slice(start) : path;
}

/**
 * Messages for the server. Reasoning stays here: models are not shown their earlier thoughts. A
 * tool call is sent only with its result, because templates refuse one without.
 */
export function wireMessages(path: readonly Message[], settings: ChatSettings): WireMessage[] {
  const kept = sent(path, settings.first);
  const answered = new Set(
    kept.flatMap((message) =>
      message.parts.map((part) => (part.type === "tool_result" ? part.id : "")),
    ),
  );
  const wire: WireMessage[] = [];
  if (settings.system.trim() !== "") wire.push({ role: "system", content: settings.system });
  for (const message of kept) {
    for (const next of wireMessage(message, answered)) {
      const last = wire.at(-1);
      // Two questions in a row, where an answer failed: many templates refuse that.
      if (next.role === "user" && last?.role === "user") {
        last.content = `${last.content}\n\n${next.content}`;
      } else {
        wire.push(next);
      }
    }
  }
  return wire;
}

function wireMessage(message: Message, answered: ReadonlySet<string>): WireMessage[] {
  if (message.role === "user") return [{ role: "user", content: userText(message.parts) }];
  if (message.role === "system") return [{ role: "system", content: textOf(message.parts) }];
  const results = message.parts.filter((part) => part.type === "tool_result");
  const tools = results.map(
    (part): WireMessage => ({
      role: "tool",
      content: part.text,
      tool_call_id: part.id,
    }),
  );
  if (message.role === "tool") return tools;
  const calls: WireCall[] = message.parts
    .filter((part) => part.type === "tool_call")
    .filter((part) => answered.has(part.id))
    .map((part) => ({
      id: part.id,
      type: "function",
      function: { name: part.name, arguments: part.arguments },
    }));
  const text = textOf(message.parts);
  // An answer that failed or was stopped before its first word says nothing.
  if (text === "" && calls.length === 0) return tools;
  const own: WireMessage = { role: "assistant", content: text };
  return [calls.length > 0 ? { ...own, tool_calls: calls } : own, ...tools];
}

/**
 * `own`: our server, which knows fields that others may refuse. `goesOn`: the last message is the
 * beginning of the answer, which our server finishes.
 */
export function wireBody(
  model: string,
  messages: WireMessage[],
  settings: ChatSettings,
  own: boolean,
  goesOn = false,
): WireBody {
  return {
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    ...(settings.temperature !== null && { temperature: settings.temperature }),
    ...(settings.top_p !== null && { top_p: settings.top_p }),
    ...(settings.max_tokens !== null && { max_tokens: settings.max_tokens }),
    ...(settings.seed !== null && { seed: settings.seed }),
    ...(own && settings.thinking !== null && { enable_thinking: settings.thinking }),
    ...(own && settings.slot !== null && { cache_slot: settings.slot }),
    ...(own && goesOn && { continue_final_message: true }),
  };
}

/** Whether the messages end with a text of the assistant that can be gone on with. */
export function isBegun(messages: readonly WireMessage[]): boolean {
  const last = messages.at(-1);
  return last?.role === "assistant" && last.tool_calls === undefined && messages.length > 1;
}

export interface CountBody {
  messages: { role: "user" | "assistant" | "system"; content: string }[];
  thinking?: { type: "enabled" };
}

/**
 * The question how many tokens a chat has, for the route that counts them; null for a chat with tool
 * calls, which that route wants in another form.
 */
export function countBody(
  messages: readonly WireMessage[],
  settings: ChatSettings,
): CountBody | null {
  const plain: CountBody["messages"] = [];
  for (const { role, content, tool_calls } of messages) {
    if (role === "tool" || tool_calls) return null;
    plain.push({ role, content: content ?? "" });
  }
  return { messages: plain, ...(settings.thinking && { thinking: { type: "enabled" } }) };
}
