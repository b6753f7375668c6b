/**
 * What a chunk of a streamed answer says, whichever server of the OpenAI kind has sent it.
 *
 * A stranger's JSON is read field by field: what is missing or of another type counts as absent.
 */
import type { Finish } from "./types";

export interface Usage {
  prompt_tokens: number | null;
  completion_tokens: number | null;
  cached_tokens: number | null;
}

/**
 * The server's own measurement, in the form of llama.cpp's server and ours: the time from the
 * beginning of the work to the first token, and tokens per second of prompt and answer.
 */
export interface Timings {
  promptMs: number;
  prefill: number | null;
  decode: number | null;
}

export interface ToolDelta {
  index: number;
  id: string;
  name: string;
  arguments: string;
}

export interface Chunk {
  id: string | null;
  model: string | null;
  text: string;
  reasoning: string;
  tools: ToolDelta[];
  finish: Finish | null;
  usage: Usage | null;
  timings: Timings | null;
  error: { message: string; code: string | null } | null;
}

type Json = Record<string, unknown>;

const object = (value: unknown): Json =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {};
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
const string = (value: unknown): string => (typeof value === "string" ? value : "");
const number = (value: unknown): number | null =>
  typeof value === "number" && Number.isFinite(value) ? value : null;

const FINISHES: readonly string[] = ["stop", "length", "tool_calls", "content_filter"];

function finishOf(value: unknown): Finish | null {
  if (typeof value !== "string" || value === "") return null;
  return FINISHES.includes(value) ? (value as Finish) : "stop";
}

function usageOf(value: unknown): Usage | null {
  const usage = object(value);
  const prompt = number(usage["prompt_tokens"]);
  const completion = number(usage["completion_tokens"]);
  if (prompt === null && completion === null) return null;
  const details = object(usage["prompt_tokens_details"]);
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    cached_tokens: number(details["cached_tokens"]),
  };
}

function timingsOf(value: unknown): Timings | null {
  const timings = object(value);
  const milliseconds = number(timings["prompt_ms"]);
  if (milliseconds === null || milliseconds < 0) return null;
  // A single token has taken no time, and some servers divide by that.
  const rate = (kind: string, least: number) => {
    const tokens = number(timings[`${kind}_n`]) ?? 0;
    const spent = number(timings[`${kind}_ms`]) ?? 0;
    const rated = number(timings[`${kind}_per_second`]) ?? 0;
    return tokens >= least && spent > 0 && rated > 0 ? rated : null;
  };
  return { promptMs: milliseconds, prefill: rate("prompt", 1), decode: rate("predicted", 2) };
}

function errorOf(value: unknown): Chunk["error"] {
  if (value === undefined || value === null) return null;
  if (typeof value === "string") return { message: value, code: null };
  const error = object(value);
  return {
    message: string(error["message"]) || "The server reported an error without a message.",
    code: string(error["code"]) || null,
  };
}

/** Reads one chunk, or a whole answer: both carry the same in `delta` or `message`. */
export function readChunk(value: unknown): Chunk {
  const chunk = object(value);
  const choice = object(list(chunk["choices"])[0]);
  const delta = object(choice["delta"] ?? choice["message"]);
  return {
    id: string(chunk["id"]) || null,
    model: string(chunk["model"]) || null,
    text: string(delta["content"]),
    reasoning: string(delta["reasoning_content"]) || string(delta["reasoning"]),
    tools: list(delta["tool_calls"]).map((entry, position) => {
      const call = object(entry);
      const tool = object(call["function"]);
      return {
        index: number(call["index"]) ?? position,
        id: string(call["id"]),
        name: string(tool["name"]),
        arguments: string(tool["arguments"]),
      };
    }),
    finish: finishOf(choice["finish_reason"]),
    usage: usageOf(chunk["usage"]),
    timings: timingsOf(chunk["timings"]),
    error: errorOf(chunk["error"]),
  };
}
