/** The two routes that every server of the OpenAI kind has: its models, and a streamed chat. */
import { type Chunk, readChunk } from "@/core/chunk";
import { createSseParser } from "@/core/sse";
import type { CountBody, WireBody } from "@/core/wire";
import type { Described } from "./described";
import { request, type Server } from "./http";

/**
 * What a model says about itself; `starter`: it is the one that comes with the program; `fromSource`:
 * and that runs from its source tree, where `make` gets one that chats.
 */
export interface ModelAbout {
  note: string;
  examples: string[];
  starter: boolean;
  fromSource: boolean;
}

export interface ModelInfo {
  id: string;
  context_length: number | null;
  max_output_tokens: number | null;
  about: ModelAbout | null;
}

const LENGTHS = ["context_length", "context_window", "max_model_len", "max_context_length"];

export async function listModels(server: Server, signal: AbortSignal): Promise<ModelInfo[]> {
  const response = await request(`${server.base}/models`, { signal }, server.key);
  const data: unknown = await response.json();
  const list = typeof data === "object" && data !== null && "data" in data ? data.data : data;
  if (!Array.isArray(list)) return [];
  return list.filter((entry) => typeof entry?.id === "string").map(readModel);
}

function readModel(entry: Record<string, unknown>): ModelInfo {
  const number = (value: unknown) => (typeof value === "number" && value > 0 ? value : null);
  const lengths = LENGTHS.map((name) => number(entry[name]));
  return {
    id: String(entry["id"]),
    context_length: lengths.find((length) => length !== null) ?? null,
    max_output_tokens: number(entry["max_output_tokens"]),
    about: readAbout(entry["about"]),
  };
}

function readAbout(value: unknown): ModelAbout | null {
  if (typeof value !== "object" || value === null) return null;
  const { note, examples, starter, from_source } = value as Record<string, unknown>;
  return {
    note: typeof note === "string" ? note : "",
    examples: Array.isArray(examples) ? examples.filter((text) => typeof text === "string") : [],
    starter: starter === true,
    fromSource: from_source === true,
  };
}

/** How many tokens the prompt of a chat has; our server counts, others may not have the route. */
export async function countTokens(
  server: Server,
  body: CountBody,
  signal: AbortSignal,
): Promise<number> {
  const described: Described["CountRequest"] = body;
  const init = { method: "POST", body: JSON.stringify(described), signal };
  const response = await request(`${server.base}/messages/count_tokens`, init, server.key);
  return ((await response.json()) as Described["CountObject"]).input_tokens;
}

export interface Admission {
  queueWaitMs: number | null;
  requestId: string | null;
}

/** The stream ended before the answer did. */
export class BrokenStreamError extends Error {}

/**
 * Sends a chat and gives its chunks. `admitted` is called when the headers are there: our server
 * sends them once the request has left the queue.
 *
 * Raises HttpError for a refusal, BrokenStreamError for an end without an end, what `fetch` raises
 * if nothing answers, and AbortError after `signal`.
 */
export async function* streamChat(
  server: Server,
  body: WireBody,
  signal: AbortSignal,
  admitted: (admission: Admission) => void,
): AsyncGenerator<Chunk> {
  // What we send is what our server's description knows, whatever other servers make of it.
  const described: Described["ChatRequest"] = body;
  const init = { method: "POST", body: JSON.stringify(described), signal };
  const response = await request(`${server.base}/chat/completions`, init, server.key);
  const wait = Number(response.headers.get("x-colibri-queue-wait-ms") ?? Number.NaN);
  admitted({
    queueWaitMs: Number.isFinite(wait) ? wait : null,
    requestId: response.headers.get("x-request-id"),
  });
  if (response.headers.get("content-type")?.includes("application/json")) {
    yield readChunk(await response.json());
    return;
  }
  if (!response.body) throw new BrokenStreamError("The answer has no body.");
  yield* readStream(response.body, signal);
}

async function* readStream(
  body: ReadableStream<Uint8Array>,
  signal: AbortSignal,
): AsyncGenerator<Chunk> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = createSseParser();
  let finished = false;
  try {
    for (;;) {
      const { done, value } = await read(reader, signal);
      if (done) break;
      for (const event of parser.push(decoder.decode(value, { stream: true }))) {
        if (event.data === "[DONE]") return;
        const chunk = parse(event.data);
        if (chunk === null) continue;
        finished ||= chunk.finish !== null || chunk.error !== null;
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
  if (!finished) throw new BrokenStreamError("The connection ended before the answer did.");
}

async function read(reader: ReadableStreamDefaultReader<Uint8Array>, signal: AbortSignal) {
  try {
    return await reader.read();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new BrokenStreamError(error instanceof Error ? error.message : String(error));
  }
}

function parse(data: string): Chunk | null {
  try {
    return readChunk(JSON.parse(data));
  } catch {
    // A line that is no JSON (some proxies send signs of life of their own) says nothing.
    return null;
  }
}
