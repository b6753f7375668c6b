/** From what went wrong to a state that can be shown, with the action that fits it. */
import type { Failure, FailureKind } from "./types";

export interface ErrorAnswer {
  status: number;
  message: string;
  code: string | null;
  requestId: string | null;
  retryAfterSeconds: number | null;
  /** What to type in a terminal to put it right, where the server says so. */
  commands?: string[];
}

const CONTEXT_CODES = ["context_length_exceeded", "context_window_exceeded"];
// Servers that have no code for it say it in words.
const CONTEXT_WORDS = /(context|prompt).{0,40}(length|window|size|too long|exceed)/i;

function kindOf(status: number, code: string | null, message: string): FailureKind {
  if (status === 401 || status === 403) return "login";
  if (status === 429) return "busy";
  if (code === "no_model_loaded") return "no_model";
  if (status === 503) return "unavailable";
  if (status >= 400 && status < 500) {
    const overflow = code !== null && CONTEXT_CODES.includes(code);
    return overflow || CONTEXT_WORDS.test(message) ? "context" : "refused";
  }
  return "server";
}

/** A failure that the server has told with an HTTP status. */
export function failureOf(answer: ErrorAnswer): Failure {
  return {
    kind: kindOf(answer.status, answer.code, answer.message),
    message: answer.message,
    status: answer.status,
    code: answer.code,
    request_id: answer.requestId,
    retry_after_seconds: answer.retryAfterSeconds,
  };
}

/** A failure told inside a stream, after its headers. */
export function failureInStream(message: string, code: string | null): Failure {
  const kind =
    code?.startsWith("engine_") || code === "model_changed"
      ? "unavailable"
      : code !== null && CONTEXT_CODES.includes(code)
        ? "context"
        : "server";
  return { kind, message, status: null, code, request_id: null, retry_after_seconds: null };
}

/** A connection that was never made, or broke. */
export function connectionFailure(kind: "unreachable" | "dropped", message: string): Failure {
  return { kind, message, status: null, code: null, request_id: null, retry_after_seconds: null };
}

/** Failures that pass by themselves: the request may be sent again unchanged, a while later. */
export function passes(failure: Failure): boolean {
  return (failure.kind === "busy" || failure.kind === "unavailable") && failure.status !== null;
}

/** Seconds to wait before try number `attempt` (1 = the first repetition). */
export function retryDelay(failure: Failure, attempt: number): number {
  const asked = failure.retry_after_seconds;
  if (asked !== null && asked >= 0) return Math.min(asked, 300);
  return Math.min(2 ** attempt, 30);
}

/** The context length and the prompt's tokens, where the message of an overflow names them. */
export function overflowNumbers(message: string): { context: number; prompt: number } | null {
  const numbers = [...message.matchAll(/\b(\d[\d,]*)\s+tokens?\b/gi)].map(([, digits]) =>
    Number((digits ?? "").replaceAll(",", "")),
  );
  const [context, prompt] = numbers;
  if (context === undefined || prompt === undefined || prompt <= context) return null;
  return { context, prompt };
}
