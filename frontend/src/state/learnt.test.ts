import { beforeEach, expect, test } from "vitest";
import { Answer } from "@/core/answer";
import { readChunk } from "@/core/chunk";
import { learn, learntOf } from "./learnt";
import { setPrefs, usePrefs } from "./prefs";

const server = (base: string) => ({ base, key: null, own: false });
const HERE = server("http://a/v1");

beforeEach(() => setPrefs({ learnt: {} }));

/** An answer of 100 tokens, `gapMs` after each other, to a prompt of 1,000. */
function answered(gapMs: number): Answer {
  const answer = new Answer();
  for (let at = 0; at < 100; at++) {
    answer.take(readChunk({ choices: [{ delta: { content: "a" } }] }), 2000 + at * gapMs);
  }
  const usage = { prompt_tokens: 1000, completion_tokens: 100 };
  answer.take(readChunk({ choices: [], usage }), 2000 + 100 * gapMs);
  return answer;
}

const turn = { sentAt: 0, queueWaitMs: 0 };
const known = (where: typeof HERE, model: string) =>
  learntOf(usePrefs.getState().learnt, where, model);

test("each model of each server has speeds of its own", () => {
  learn(HERE, "small", [], answered(10), turn);
  learn(HERE, "large", [], answered(100), turn);
  learn(server("http://b/v1"), "small", [], answered(50), turn);
  expect(known(HERE, "small").decode).toBeCloseTo(100);
  expect(known(HERE, "large").decode).toBeCloseTo(10);
  expect(known(server("http://b/v1"), "small").decode).toBeCloseTo(20);
  expect(known(HERE, "small").prefill).toBe(500);
  expect(known(HERE, "unknown").decode).toBe(null);
});

test("an answer that came in one go leaves what is known", () => {
  learn(HERE, "small", [], answered(10), turn);
  const before = known(HERE, "small");
  learn(HERE, "small", [], answered(0.01), turn);
  expect(known(HERE, "small")).toEqual(before);
});
