import { expect, test } from "vitest";
import { bytes, duration, percent, rate } from "./format";
import { titleFrom } from "./parts";
import { typedNumber } from "./settings";

test("sizes and times are short", () => {
  expect(bytes(999, "en")).toBe("999 B");
  expect(bytes(1_500_000_000, "de")).toBe("1,5 GB");
  expect(duration(840, "en")).toBe("840 ms");
  expect(duration(3240, "en")).toBe("3.2 s");
  expect(duration(59_990, "en")).toBe("1 min 00 s");
  expect(duration(245_000, "en")).toBe("4 min 05 s");
  expect(duration(7_800_000, "en")).toBe("2 h 10 min");
  expect(rate(2.345, "en")).toBe("2.35");
  expect(rate(123.4, "en")).toBe("123");
  expect(percent(0.001)).toBe("1 %");
  expect(percent(1.2)).toBe("100 %");
});

test("a title is the first line that says something", () => {
  expect(titleFrom([{ type: "text", text: "\n## Hello there\nmore" }])).toBe("Hello there");
  expect(titleFrom([{ type: "file", name: "a.txt", text: "x" }])).toBe("a.txt");
  const long = titleFrom([{ type: "text", text: "word ".repeat(40) }]);
  expect(long.length).toBeLessThanOrEqual(61);
  expect(long.endsWith("word…")).toBe(true);
});

test("typed numbers are kept inside their limits", () => {
  expect(typedNumber("0,7", { min: 0, max: 2 })).toBe(0.7);
  expect(typedNumber("9", { min: 0, max: 2 })).toBe(2);
  expect(typedNumber("12.6", { min: 1, max: 99, whole: true })).toBe(13);
  expect(typedNumber("", { min: 0, max: 2 })).toBe(null);
  expect(typedNumber("x", { min: 0, max: 2 })).toBe(null);
});
