/**
 * What chats consist of, in the shape that they are stored and exported in (snake_case, as in every
 * JSON of the server). A chat is a tree of messages: whoever regenerates or edits grows a branch.
 */

export type Role = "system" | "user" | "assistant" | "tool";

export type Part =
  | { type: "text"; text: string }
  | { type: "reasoning"; text: string }
  | { type: "tool_call"; id: string; name: string; arguments: string }
  | { type: "tool_result"; id: string; text: string }
  | { type: "file"; name: string; text: string };

/** Why an answer ended. `cancelled`: the user stopped it; `dropped`: it broke off. */
export type Finish = "stop" | "length" | "tool_calls" | "content_filter" | "cancelled" | "dropped";

export type FailureKind =
  | "unreachable" // nothing answered
  | "dropped" // the connection broke while the answer came
  | "busy" // 429
  | "no_model" // the server runs without a model
  | "unavailable" // 503: loading, restarting, out of something
  | "login" // 401, 403
  | "context" // the conversation is longer than the context
  | "refused" // another 4xx: the server says what is wrong
  | "server"; // 5xx, or an answer that nobody understands

export interface Failure {
  kind: FailureKind;
  message: string;
  status: number | null;
  code: string | null;
  request_id: string | null;
  retry_after_seconds: number | null;
}

/** Figures of one answer. Times in milliseconds, rates in tokens per second; null = not known. */
export interface TurnStats {
  prompt_tokens: number | null;
  completion_tokens: number | null;
  cached_tokens: number | null;
  queue_wait_ms: number | null;
  ttft_ms: number | null;
  total_ms: number;
  tokens_per_second: number | null;
  prefill_tokens_per_second: number | null;
  /** The counts are our own guess, since the server sent no usage. */
  estimated: boolean;
}

export interface Meta {
  model?: string;
  finish?: Finish;
  failure?: Failure;
  stats?: TurnStats;
  /** How long the reasoning took, in milliseconds. */
  reasoning_ms?: number;
  /** The text of an answer was changed by hand. */
  edited?: boolean;
}

export interface Message {
  id: string;
  parent: string | null;
  role: Role;
  parts: Part[];
  meta: Meta;
  created_at_ms: number;
  updated_at_ms: number;
}

/** Null means: what the server does unasked. */
export interface ChatSettings {
  system: string;
  temperature: number | null;
  top_p: number | null;
  max_tokens: number | null;
  thinking: boolean | null;
  slot: number | null;
  seed: number | null;
  /** The first message that is sent; those above it are left out. Null: all. */
  first: string | null;
}

export interface Chat {
  id: string;
  title: string;
  pinned: boolean;
  settings: ChatSettings;
  /** The leaf that was shown last. */
  active: string | null;
  created_at_ms: number;
  updated_at_ms: number;
}

/** A row of the list of chats. */
export interface ChatSummary extends Chat {
  messages: number;
}

/** A whole chat; parents stand before their children, siblings oldest first. */
export interface ChatTree extends Chat {
  messages: Message[];
}

export interface Preset {
  id: string;
  name: string;
  settings: ChatSettings;
}

export const DEFAULT_SETTINGS: ChatSettings = {
  system: "",
  temperature: null,
  top_p: null,
  max_tokens: null,
  thinking: null,
  slot: null,
  seed: null,
  first: null,
};
