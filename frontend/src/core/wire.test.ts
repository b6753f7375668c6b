import { expect, test } from "vitest";
import type { Message, Part, Role } from "./types";
import { DEFAULT_SETTINGS } from "./types";
import { countBody, fenced, isBegun, wireBody, wireMessages } from "./wire";

let next = 0;
function message(role: Role, ...parts: Part[]): Message {
  const id = `m${next++}`;
  return { id, parent: null, role, parts, meta: {}, created_at_ms: 0, updated_at_ms: 0 };
}
const text = (words: string): Part => ({ type: "text", text: words });

test("R080: reasoning is not sent back", () => {
  const path = [
    message("user", text("hi")),
    message("assistant", { type: "reasoning", text: "secret" }, text("hello")),
  ];
  expect(wireMessages(path, { ...DEFAULT_SETTINGS, system: "Be kind." })).toEqual([
    { role: "system", content: "Be kind." },
    { role: "user", content: "hi" },
    { role: "assistant", content: "hello" },
  ]);
});

test("a file stands before the text, in a fence that it cannot close", () => {
  const file: Part = { type: "file", name: "a.md", text: "```\nx\n```" };
  const [wire] = wireMessages([message("user", file, text("what?"))], DEFAULT_SETTINGS);
  expect(wire?.content).toBe("File: a.md\n````\n```\nx\n```\n````\n\nwhat?");
  expect(fenced("a\n", "py")).toBe("```py\na\n```");
});

test("an empty answer is left out, and two questions in a row become one", () => {
  const path = [message("user", text("a")), message("assistant"), message("user", text("b"))];
  expect(wireMessages(path, DEFAULT_SETTINGS)).toEqual([{ role: "user", content: "a\n\nb" }]);
});

test("a tool call goes with its result or not at all", () => {
  const call: Part = { type: "tool_call", id: "1", name: "look", arguments: "{}" };
  const result: Part = { type: "tool_result", id: "1", text: "seen" };
  const asked = [message("user", text("a")), message("assistant", text("b"), call)];
  expect(wireMessages(asked, DEFAULT_SETTINGS)[1]).toEqual({ role: "assistant", content: "b" });
  const answered = wireMessages([...asked, message("tool", result)], DEFAULT_SETTINGS);
  expect(answered[1]?.tool_calls?.[0]?.function.name).toBe("look");
  expect(answered[2]).toEqual({ role: "tool", content: "seen", tool_call_id: "1" });
});

test("what is above the first message is not sent", () => {
  const path = [
    message("user", text("a")),
    message("assistant", text("b")),
    message("user", text("c")),
  ];
  const settings = { ...DEFAULT_SETTINGS, first: path[2]?.id ?? null };
  expect(wireMessages(path, settings)).toEqual([{ role: "user", content: "c" }]);
  expect(wireMessages(path, { ...settings, first: "elsewhere" })).toHaveLength(3);
});

test("only what is set is sent, and our own fields to our own server only", () => {
  const settings = { ...DEFAULT_SETTINGS, temperature: 0, thinking: false, slot: 1 };
  expect(wireBody("m", [], settings, false)).toEqual({
    model: "m",
    messages: [],
    stream: true,
    stream_options: { include_usage: true },
    temperature: 0,
  });
  expect(wireBody("m", [], settings, true)).toMatchObject({
    enable_thinking: false,
    cache_slot: 1,
  });
});

test("only our server is told to go on with the last message, and only with text", () => {
  const begun = wireMessages(
    [message("user", text("a")), message("assistant", text("b"))],
    DEFAULT_SETTINGS,
  );
  expect(isBegun(begun)).toBe(true);
  expect(isBegun(begun.slice(0, 1))).toBe(false);
  expect(isBegun(begun.slice(1))).toBe(false);
  expect(
    isBegun([
      { role: "user", content: "a" },
      { ...begun[1]!, tool_calls: [] },
    ]),
  ).toBe(false);
  const going = wireBody("m", begun, DEFAULT_SETTINGS, true, true);
  expect(going.continue_final_message).toBe(true);
  expect(wireBody("m", begun, DEFAULT_SETTINGS, false, true)).not.toHaveProperty(
    "continue_final_message",
  );
});

test("a chat is counted as it would be sent; one with tool calls is not", () => {
  const path = [message("user", text("a")), message("assistant", text("b"))];
  const settings = { ...DEFAULT_SETTINGS, system: "s", thinking: true };
  expect(countBody(wireMessages(path, settings), settings)).toEqual({
    messages: [
      { role: "system", content: "s" },
      { role: "user", content: "a" },
      { role: "assistant", content: "b" },
    ],
    thinking: { type: "enabled" },
  });
  expect(countBody([{ role: "tool", content: "x", tool_call_id: "1" }], settings)).toBeNull();
});
