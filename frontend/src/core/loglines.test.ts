import { expect, test } from "vitest";
import { asText, matching } from "./loglines";

const line = (level: "info" | "error", message: string, request_id = "") => ({
  at_ms: 0,
  level,
  logger: "colibri.api",
  message,
  request_id,
});
const lines = [line("info", "POST /v1/messages 200"), line("error", "Disk full", "req_7")];

test("lines are found by level and by all of the words, in any case", () => {
  expect(matching(lines, "debug", "")).toHaveLength(2);
  expect(matching(lines, "warning", "")).toEqual([lines[1]]);
  expect(matching(lines, "debug", "full DISK")).toEqual([lines[1]]);
  expect(matching(lines, "debug", "req_7")).toEqual([lines[1]]);
  expect(matching(lines, "debug", "full messages")).toEqual([]);
});

test("a line as text has everything that it has on the page", () => {
  expect(asText(lines.slice(1))).toBe("1970-01-01T00:00:00.000Z ERROR colibri.api req_7 Disk full");
});
