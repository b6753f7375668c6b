import { expect, test } from "vitest";
import { Answer } from "./answer";
import { readChunk } from "./chunk";
import { splitThink } from "./think";

const delta = (fields: object, finish: string | null = null) =>
  readChunk({ id: "chatcmpl-7", model: "m", choices: [{ delta: fields, finish_reason: finish }] });

test("an answer is gathered with its figures", () => {
  const answer = new Answer();
  answer.take(delta({ role: "assistant", content: "" }), 100);
  answer.take(delta({ reasoning_content: "hm" }), 400);
  answer.take(delta({ content: "Hel" }), 600);
  answer.take(delta({ content: "lo" }), 800);
  answer.take(delta({}, "length"), 810);
  answer.take(
    readChunk({
      choices: [],
      usage: {
        prompt_tokens: 50,
        completion_tokens: 6,
        prompt_tokens_details: { cached_tokens: 20 },
      },
    }),
    820,
  );
  expect(answer.parts()).toEqual([
    { type: "reasoning", text: "hm" },
    { type: "text", text: "Hello" },
  ]);
  expect(answer.finish).toBe("length");
  expect(answer.stats(0, 900, 100)).toEqual({
    prompt_tokens: 50,
    completion_tokens: 6,
    cached_tokens: 20,
    queue_wait_ms: 100,
    ttft_ms: 400,
    total_ms: 900,
    tokens_per_second: 10, // two of the three pieces, so 4 tokens, in 400 ms
    prefill_tokens_per_second: 100, // 30 tokens in 300 ms
    estimated: false,
  });
});

/** An answer of so many tokens that comes at these moments, one piece each; sent at 0. */
function arrived(moments: readonly number[], completion: number, fields: object = {}): Answer {
  const answer = new Answer();
  for (const at of moments) answer.take(delta({ content: "a" }), at);
  const usage = { prompt_tokens: 600, completion_tokens: completion };
  answer.take(readChunk({ choices: [], usage, ...fields }), moments.at(-1) ?? 0);
  return answer;
}

test("an answer that comes in one go shows no speed, and teaches none", () => {
  const burst = Array.from({ length: 19 }, (_, at) => 3000 + at * 0.04);
  const stats = arrived(burst, 19).stats(0, 3010, 0);
  expect(stats.tokens_per_second).toBe(null);
  expect(stats.prefill_tokens_per_second).toBe(null);
  expect(stats.ttft_ms).toBe(3000);
});

test("what a proxy had gathered before the rest does not count", () => {
  const gathered = Array.from({ length: 80 }, (_, at) => 1000 + at * 0.1);
  const steady = Array.from({ length: 20 }, (_, at) => 1108 + at * 100);
  // 20 pieces in two seconds, after the burst.
  const speed = arrived([...gathered, ...steady], 100).stats(0, 4000, 0).tokens_per_second;
  expect(speed).toBeCloseTo(10, 1);
});

test("a server that is faster than any burst has a speed all the same", () => {
  const moments = Array.from({ length: 1001 }, (_, at) => 500 + at);
  const stats = arrived(moments, 1001).stats(0, 1600, 0);
  expect(stats.tokens_per_second).toBeCloseTo(1000, 0);
  expect(stats.prefill_tokens_per_second).toBe(1200);
});

test("a span too short to bear it gives no speed", () => {
  expect(arrived([1000, 1199], 2).stats(0, 1300, 0).tokens_per_second).toBe(null);
  expect(arrived([1000, 1200], 2).stats(0, 1300, 0).tokens_per_second).toBe(5);
  // A prompt that was read at once says nothing about longer ones.
  expect(arrived([199, 600], 2).stats(0, 700, 0).prefill_tokens_per_second).toBe(null);
});

test("the server's own times go before our clock's", () => {
  const timings = {
    prompt_n: 600,
    prompt_ms: 400,
    prompt_per_second: 1500,
    predicted_n: 19,
    predicted_ms: 900,
    predicted_per_second: 20,
  };
  const burst = Array.from({ length: 19 }, (_, at) => 3200 + at * 0.04);
  const stats = arrived(burst, 19, { timings }).stats(0, 3300, 100);
  expect(stats.tokens_per_second).toBe(20);
  expect(stats.prefill_tokens_per_second).toBe(1500);
  expect(stats.ttft_ms).toBe(500);
  // A server that does not tell how long a request has queued: what was seen.
  expect(arrived(burst, 19, { timings }).stats(0, 3300, null).ttft_ms).toBe(3200);
  // One token after nothing: some servers call that a million a second.
  const one = { ...timings, predicted_n: 1, predicted_ms: 0.001, predicted_per_second: 1e6 };
  expect(arrived([400], 1, { timings: one }).stats(0, 410, 0).tokens_per_second).toBe(null);
});

test("without usage the counts are a guess, and say so", () => {
  const answer = new Answer();
  answer.take(delta({ content: "a" }), 10);
  const stats = answer.stats(0, 20, null);
  expect(stats.estimated).toBe(true);
  expect(stats.completion_tokens).toBe(1);
  expect(stats.tokens_per_second).toBe(null);
});

test("tool calls are put together from their pieces", () => {
  const answer = new Answer();
  const call = (fields: object) => delta({ tool_calls: [fields] });
  answer.take(call({ index: 0, id: "c1", function: { name: "look", arguments: "" } }), 1);
  answer.take(call({ index: 1, id: "c2", function: { name: "see", arguments: "{}" } }), 2);
  answer.take(call({ index: 0, function: { arguments: '{"a":' } }), 3);
  answer.take(call({ index: 0, function: { arguments: "1}" } }), 4);
  expect(answer.parts()).toEqual([
    { type: "tool_call", id: "c1", name: "look", arguments: '{"a":1}' },
    { type: "tool_call", id: "c2", name: "see", arguments: "{}" },
  ]);
});

test("reasoning between tags is told from text, however much of it has come", () => {
  const whole = "<think>\nfirst</think>\n\nThen.";
  expect(splitThink(whole)).toEqual({ reasoning: "first", text: "Then." });
  for (let length = 0; length <= whole.length; length++) {
    const { reasoning, text } = splitThink(whole.slice(0, length));
    expect("first".startsWith(reasoning), `${length}: ${reasoning}`).toBe(true);
    expect("Then.".startsWith(text), `${length}: ${text}`).toBe(true);
  }
  expect(splitThink("a <think> b")).toEqual({ reasoning: "", text: "a <think> b" });
});

test("a stranger's chunk is read field by field", () => {
  for (const strange of [null, 3, "x", [], { choices: 4 }, { choices: [null] }, { usage: "no" }]) {
    const chunk = readChunk(strange);
    expect(chunk.text).toBe("");
    expect(chunk.finish).toBe(null);
    expect(chunk.usage).toBe(null);
    expect(chunk.timings).toBe(null);
  }
  expect(readChunk({ timings: { prompt_ms: 1, predicted_per_second: "9" } }).timings).toEqual({
    promptMs: 1,
    prefill: null,
    decode: null,
  });
  expect(readChunk({ error: "broken" }).error).toEqual({ message: "broken", code: null });
  expect(readChunk({ error: { message: "m", code: "engine_lost" } }).error?.code).toBe(
    "engine_lost",
  );
  expect(delta({}, "eos").finish).toBe("stop");
});
