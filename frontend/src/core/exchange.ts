/**
 * Chats as files: JSON with the whole tree, and one branch as Markdown, out and in.
 *
 * A file is a stranger's: what does not look like a chat is refused with a sentence, what is
 * missing gets its default, and nothing is taken over unread.
 */
import { newId } from "./ids";
import { textOf } from "./parts";
import type {
  Chat,
  ChatSettings,
  ChatTree,
  Failure,
  FailureKind,
  Finish,
  Message,
  Meta,
  Part,
  Role,
  TurnStats,
} from "./types";
import { DEFAULT_SETTINGS } from "./types";
import { fenced } from "./wire";

export const FORMAT = "colibri-chats";
export const VERSION = 1;

export interface Exchange {
  format: typeof FORMAT;
  version: number;
  chats: ChatTree[];
}

export function exportJson(chats: readonly ChatTree[]): string {
  return `${JSON.stringify({ format: FORMAT, version: VERSION, chats }, null, 1)}\n`;
}

const HEADINGS: Record<Role, string> = {
  system: "System",
  user: "User",
  assistant: "Assistant",
  tool: "Tool",
};

/** One branch for people to read: headings by role, reasoning folded away. */
export function exportMarkdown(chat: Chat, path: readonly Message[]): string {
  const pieces = [`# ${chat.title || "Chat"}`];
  if (chat.settings.system) pieces.push("## System", chat.settings.system);
  for (const message of path) {
    pieces.push(`## ${HEADINGS[message.role]}`, ...message.parts.map(markdownOf));
  }
  return `${pieces.filter((piece) => piece !== "").join("\n\n")}\n`;
}

function markdownOf(part: Part): string {
  switch (part.type) {
    case "text":
      return part.text.trim();
    case "reasoning":
      return `<details><summary>Reasoning</summary>\n\n${part.text.trim()}\n\n</details>`;
    case "file":
      return `File: ${part.name}\n\n${fenced(part.text, "")}`;
    case "tool_call":
      return `Tool call: ${part.name}\n\n${fenced(part.arguments, "json")}`;
    case "tool_result":
      return `Tool result:\n\n${fenced(part.text, "")}`;
  }
}

/** A name for a file that every system takes. */
export function fileName(title: string, ending: string): string {
  const plain = title.normalize("NFKD").replace(/[^\p{L}\p{N}]+/gu, "-");
  return `${plain.replace(/^-+|-+$/g, "").slice(0, 60) || "chat"}.${ending}`;
}

/** A file that cannot be imported; `reason` is a key of the page's texts. */
export class ImportError extends Error {
  constructor(readonly reason: "not_json" | "not_chats" | "newer" | "empty") {
    super(reason);
  }
}

type Json = Record<string, unknown>;
const isObject = (value: unknown): value is Json =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const text = (value: unknown): string => (typeof value === "string" ? value : "");
const time = (value: unknown, now: number): number =>
  typeof value === "number" && Number.isFinite(value) ? value : now;

/** Reads an exported file. Raises ImportError. Ids are kept; the store gives new ones if taken. */
export function importJson(file: string, now: number): ChatTree[] {
  let data: unknown;
  try {
    data = JSON.parse(file);
  } catch {
    throw new ImportError("not_json");
  }
  if (!isObject(data) || data["format"] !== FORMAT || !Array.isArray(data["chats"])) {
    throw new ImportError("not_chats");
  }
  if (typeof data["version"] === "number" && data["version"] > VERSION) {
    throw new ImportError("newer");
  }
  const chats = data["chats"].filter(isObject).map((chat) => readChat(chat, now));
  if (chats.length === 0) throw new ImportError("empty");
  return chats;
}

/** A chat of a file or of the server, whatever is in it. */
export function readChat(chat: Json, now: number): ChatTree {
  const messages = Array.isArray(chat["messages"]) ? chat["messages"].filter(isObject) : [];
  return {
    id: text(chat["id"]) || newId(),
    title: text(chat["title"]).slice(0, 300),
    pinned: chat["pinned"] === true,
    settings: readSettings(chat["settings"]),
    active: text(chat["active"]) || null,
    created_at_ms: time(chat["created_at_ms"], now),
    updated_at_ms: time(chat["updated_at_ms"], now),
    messages: messages.map((message) => readMessage(message, now)).filter((m) => m.id !== ""),
  };
}

/** Settings of a file or of the server; what is of the wrong type counts as not set. */
export function readSettings(value: unknown): ChatSettings {
  const given = isObject(value) ? value : {};
  const number = (name: string) =>
    typeof given[name] === "number" && Number.isFinite(given[name]) ? given[name] : null;
  return {
    ...DEFAULT_SETTINGS,
    system: text(given["system"]),
    temperature: number("temperature"),
    top_p: number("top_p"),
    max_tokens: number("max_tokens"),
    thinking: typeof given["thinking"] === "boolean" ? given["thinking"] : null,
    slot: number("slot"),
    seed: number("seed"),
    first: text(given["first"]) || null,
  };
}

const ROLES: readonly string[] = ["system", "user", "assistant", "tool"];

function readMessage(message: Json, now: number): Message {
  const role = text(message["role"]);
  const parts = Array.isArray(message["parts"]) ? message["parts"].filter(isObject) : [];
  return {
    id: text(message["id"]),
    parent: text(message["parent"]) || null,
    role: ROLES.includes(role) ? (role as Role) : "user",
    parts: parts.map(readPart),
    meta: readMeta(message["meta"]),
    created_at_ms: time(message["created_at_ms"], now),
    updated_at_ms: time(message["updated_at_ms"], now),
  };
}

const FINISHES: readonly string[] = [
  "stop",
  "length",
  "tool_calls",
  "content_filter",
  "cancelled",
  "dropped",
];

function readMeta(value: unknown): Meta {
  if (!isObject(value)) return {};
  const meta: Meta = {};
  if (typeof value["model"] === "string") meta.model = value["model"];
  const finish = value["finish"];
  if (typeof finish === "string" && FINISHES.includes(finish)) meta.finish = finish as Finish;
  if (typeof value["reasoning_ms"] === "number") meta.reasoning_ms = value["reasoning_ms"];
  if (value["edited"] === true) meta.edited = true;
  if (isObject(value["stats"])) meta.stats = readStats(value["stats"]);
  if (isObject(value["failure"])) meta.failure = readFailure(value["failure"]);
  return meta;
}

function readStats(stats: Json): TurnStats {
  const number = (name: string) => (typeof stats[name] === "number" ? stats[name] : null);
  return {
    prompt_tokens: number("prompt_tokens"),
    completion_tokens: number("completion_tokens"),
    cached_tokens: number("cached_tokens"),
    queue_wait_ms: number("queue_wait_ms"),
    ttft_ms: number("ttft_ms"),
    total_ms: number("total_ms") ?? 0,
    tokens_per_second: number("tokens_per_second"),
    prefill_tokens_per_second: number("prefill_tokens_per_second"),
    estimated: stats["estimated"] === true,
  };
}

const KINDS: readonly string[] = [
  "unreachable",
  "dropped",
  "busy",
  "unavailable",
  "login",
  "context",
  "refused",
  "server",
];

function readFailure(failure: Json): Failure {
  const kind = text(failure["kind"]);
  return {
    kind: KINDS.includes(kind) ? (kind as FailureKind) : "server",
    message: text(failure["message"]),
    status: typeof failure["status"] === "number" ? failure["status"] : null,
    code: text(failure["code"]) || null,
    request_id: text(failure["request_id"]) || null,
    retry_after_seconds: null,
  };
}

function readPart(part: Json): Part {
  switch (part["type"]) {
    case "reasoning":
      return { type: "reasoning", text: text(part["text"]) };
    case "file":
      return { type: "file", name: text(part["name"]) || "file", text: text(part["text"]) };
    case "tool_call":
      return {
        type: "tool_call",
        id: text(part["id"]),
        name: text(part["name"]),
        arguments: text(part["arguments"]),
      };
    case "tool_result":
      return { type: "tool_result", id: text(part["id"]), text: text(part["text"]) };
    default:
      return { type: "text", text: text(part["text"]) };
  }
}

/** Whether every word occurs in the title or a text of the chat; words may be begun. */
export function matches(chat: ChatTree, query: string): boolean {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const all = [chat.title, ...chat.messages.map((message) => textOf(message.parts))]
    .join("\n")
    .toLowerCase();
  return words.every((word) => all.includes(word));
}
