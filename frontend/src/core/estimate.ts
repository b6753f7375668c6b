/**
 * How many tokens a text may have, how full the context is, and how long an answer will take.
 *
 * The page has no tokenizer. It learns from each answer how many characters a token has in this
 * chat, and how fast this server reads and writes; before the first answer it takes usual values.
 */
import type { WireMessage } from "./wire";

/** Usual for English text; code and other languages have less. */
export const USUAL_CHARACTERS = 3.8;
/** Below this nobody needs a warning. */
export const SLOW_SECONDS = 10;
/** Template marks around a message. */
const MESSAGE_TOKENS = 5;

const WIDE = /[\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\u{20000}-\u{3ffff}]/gu;

/** Tokens of a text. Chinese, Japanese and Korean have about one a character. */
export function estimateTokens(text: string, characters: number = USUAL_CHARACTERS): number {
  const wide = text.match(WIDE)?.length ?? 0;
  return Math.ceil(wide + (text.length - wide) / characters);
}

export function estimateMessages(messages: readonly WireMessage[], characters?: number): number {
  return messages.reduce(
    (sum, message) => sum + MESSAGE_TOKENS + estimateTokens(message.content ?? "", characters),
    0,
  );
}

/** Characters per token that a counted prompt shows; null if it is too short to tell. */
export function learnCharacters(
  messages: readonly WireMessage[],
  promptTokens: number,
): number | null {
  const tokens = promptTokens - MESSAGE_TOKENS * messages.length;
  const length = messages.reduce((sum, message) => sum + (message.content?.length ?? 0), 0);
  if (tokens < 50) return null;
  return Math.min(MOST_CHARACTERS, Math.max(FEWEST_CHARACTERS, length / tokens));
}

export interface Rates {
  /** Tokens per second that a prompt is read with, and an answer is written with. */
  prefill: number | null;
  decode: number | null;
}

export interface Estimate {
  newTokens: number;
  cachedTokens: number;
  /** Until the first word, and until the answer is complete; null without a measured rate. */
  firstSeconds: number | null;
  totalSeconds: number | null;
}

/** What a turn will take that has `newTokens` to read and about `answerTokens` to write. */
export function estimateTurn(
  newTokens: number,
  cachedTokens: number,
  answerTokens: number,
  rates: Rates,
): Estimate {
  const first = rates.prefill ? newTokens / rates.prefill : null;
  const rest = rates.decode ? answerTokens / rates.decode : null;
  return {
    newTokens,
    cachedTokens,
    firstSeconds: first,
    totalSeconds: first === null || rest === null ? null : first + rest,
  };
}

/** Tokens per second between one in a quarter of an hour and more than any computer has reached. */
const SLOWEST = 0.001;
const FASTEST = 1e6;
const FEWEST_CHARACTERS = 1;
const MOST_CHARACTERS = 8;

/** A rate, or null where it is none: one absurd value would take dozens of turns to average out. */
export const plausibleRate = (value: unknown): number | null => within(value, SLOWEST, FASTEST);

export const plausibleCharacters = (value: unknown): number | null =>
  within(value, FEWEST_CHARACTERS, MOST_CHARACTERS);

/** NaN is within nothing. */
function within(value: unknown, least: number, most: number): number | null {
  return typeof value === "number" && value >= least && value <= most ? value : null;
}

/** A measured rate joins the earlier ones; recent turns count most. */
export function blend(old: number | null, measured: number | null): number | null {
  const rate = plausibleRate(measured);
  if (rate === null) return old;
  return old === null ? rate : old * 0.6 + rate * 0.4;
}

/**
 * How many messages to leave out from the top so that the rest has at most `room` tokens. Never the
 * last one. What stays begins with a user's message, since templates expect that.
 */
export function leaveOut(
  sizes: readonly number[],
  isUser: readonly boolean[],
  room: number,
): number {
  let total = sizes.reduce((sum, size) => sum + size, 0);
  let count = 0;
  const last = sizes.length - 1;
  while (count < last && (total > room || !isUser[count])) {
    total -= sizes[count] ?? 0;
    count++;
  }
  return count;
}
