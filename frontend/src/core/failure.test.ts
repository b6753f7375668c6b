import { expect, test } from "vitest";
import { failureInStream, failureOf, overflowNumbers, passes, retryDelay } from "./failure";

const answer = (status: number, code: string | null = null, message = "m") =>
  failureOf({ status, code, message, requestId: "r", retryAfterSeconds: null });

test.each([
  [401, null, "m", "login"],
  [403, "origin_not_allowed", "m", "login"],
  [429, null, "m", "busy"],
  [503, "engine_lost", "m", "unavailable"],
  [503, "no_model_loaded", "m", "no_model"],
  [400, "context_length_exceeded", "m", "context"],
  [400, null, "This model's maximum context length is 10 tokens.", "context"],
  [400, "invalid_value", "m", "refused"],
  [404, null, "m", "refused"],
  [500, null, "m", "server"],
])("%i %s %s is shown as %s", (status, code, message, kind) => {
  expect(answer(status, code, message).kind).toBe(kind);
});

test("a lost engine inside a stream is no fault of the request", () => {
  expect(failureInStream("gone", "engine_lost").kind).toBe("unavailable");
  expect(failureInStream("odd", null).kind).toBe("server");
});

test("what passes by itself is tried again, as late as the server asks", () => {
  expect(passes(answer(429))).toBe(true);
  expect(passes(answer(503))).toBe(true);
  expect(passes(answer(400))).toBe(false);
  expect(passes(failureInStream("gone", "engine_lost"))).toBe(false);
  expect(retryDelay({ ...answer(429), retry_after_seconds: 7 }, 1)).toBe(7);
  expect(retryDelay({ ...answer(429), retry_after_seconds: 9000 }, 1)).toBe(300);
  expect([1, 2, 9].map((attempt) => retryDelay(answer(429), attempt))).toEqual([2, 4, 30]);
});

test("the numbers of an overflow are found", () => {
  const said =
    "This model's maximum context length is 8,192 tokens. However, your messages resulted in 9001 tokens.";
  expect(overflowNumbers(said)).toEqual({ context: 8192, prompt: 9001 });
  expect(overflowNumbers("too long")).toBe(null);
});
