import { expect, test } from "vitest";
import { blend, estimateTokens, estimateTurn, learnCharacters, leaveOut } from "./estimate";

test("tokens are guessed by characters, wide ones by one each", () => {
  expect(estimateTokens("a".repeat(38))).toBe(10);
  expect(estimateTokens("漢字かな")).toBe(4);
  expect(estimateTokens("")).toBe(0);
});

test("characters of a token are learnt from a counted prompt", () => {
  const wire = [{ role: "user" as const, content: "x".repeat(600) }];
  expect(learnCharacters(wire, 205)).toBeCloseTo(3);
  expect(learnCharacters(wire, 20)).toBe(null);
});

test("the time of a turn is what is new by the rates", () => {
  expect(estimateTurn(1200, 3400, 300, { prefill: 30, decode: 10 })).toEqual({
    newTokens: 1200,
    cachedTokens: 3400,
    firstSeconds: 40,
    totalSeconds: 70,
  });
  expect(estimateTurn(100, 0, 300, { prefill: null, decode: 10 }).totalSeconds).toBe(null);
});

test("rates blend, and nonsense changes nothing", () => {
  expect(blend(null, 10)).toBe(10);
  expect(blend(10, 20)).toBe(14);
  for (const odd of [null, 0, -1, 1e-300, 1e300, Number.NaN, Number.POSITIVE_INFINITY])
    expect(blend(10, odd)).toBe(10);
});

test("the oldest are left out until the rest fits, and it begins with a question", () => {
  const sizes = [100, 100, 100, 100, 100];
  const users = [true, false, true, false, true];
  expect(leaveOut(sizes, users, 1000)).toBe(0);
  expect(leaveOut(sizes, users, 450)).toBe(2);
  expect(leaveOut(sizes, users, 10)).toBe(4);
});
