import { expect, test } from "vitest";
import { exportJson, exportMarkdown, fileName, ImportError, importJson, matches } from "./exchange";
import { type ChatTree, DEFAULT_SETTINGS } from "./types";

const CHAT: ChatTree = {
  id: "c1",
  title: "Birds & bees",
  pinned: true,
  settings: { ...DEFAULT_SETTINGS, system: "Be brief.", temperature: 0.5 },
  active: "m2",
  created_at_ms: 1,
  updated_at_ms: 2,
  messages: [
    {
      id: "m1",
      parent: null,
      role: "user",
      parts: [
        { type: "file", name: "a.txt", text: "```" },
        { type: "text", text: "What is this?" },
      ],
      meta: {},
      created_at_ms: 1,
      updated_at_ms: 1,
    },
    {
      id: "m2",
      parent: "m1",
      role: "assistant",
      parts: [
        { type: "reasoning", text: "hm" },
        { type: "text", text: "A fence." },
        { type: "tool_call", id: "t", name: "look", arguments: "{}" },
      ],
      meta: { finish: "stop", model: "m" },
      created_at_ms: 2,
      updated_at_ms: 2,
    },
  ],
};

test("what was exported comes back the same", () => {
  expect(importJson(exportJson([CHAT]), 99)).toEqual([CHAT]);
});

test("a branch as Markdown has all of it, reasoning folded", () => {
  const text = exportMarkdown(CHAT, CHAT.messages);
  for (const piece of ["# Birds & bees", "## System", "Be brief.", "a.txt", "````", "A fence."]) {
    expect(text).toContain(piece);
  }
  expect(text).toContain("<details><summary>Reasoning</summary>\n\nhm\n\n</details>");
});

test.each([
  ["{", "not_json"],
  ["[]", "not_chats"],
  ['{"format":"other","chats":[]}', "not_chats"],
  ['{"format":"colibri-chats","version":2,"chats":[]}', "newer"],
  ['{"format":"colibri-chats","version":1,"chats":[]}', "empty"],
])("%s is refused: %s", (file, reason) => {
  expect(() => importJson(file, 0)).toThrow(new ImportError(reason as "empty"));
});

test("a strange file is read without trusting it", () => {
  const strange = {
    format: "colibri-chats",
    chats: [
      {
        title: 5,
        settings: { temperature: "hot", slot: 1, extra: true },
        messages: [
          {
            id: "x",
            role: "root",
            parts: [{ type: "text" }, "no", { type: "odd", text: "t" }],
            meta: 4,
          },
          { role: "user" },
          { id: "y", parent: "x", role: "user", meta: { stats: 3, finish: "never", failure: {} } },
        ],
      },
    ],
  };
  const [chat] = importJson(JSON.stringify(strange), 7);
  expect(chat?.settings).toEqual({ ...DEFAULT_SETTINGS, slot: 1 });
  expect(chat?.messages.map(({ id, role }) => [id, role])).toEqual([
    ["x", "user"],
    ["y", "user"],
  ]);
  expect(chat?.messages[0]?.parts).toEqual([
    { type: "text", text: "" },
    { type: "text", text: "t" },
  ]);
  expect(chat?.messages[1]?.meta.finish).toBe(undefined);
});

test("search needs every word, and file names suit every system", () => {
  expect(matches(CHAT, "fence BIRD")).toBe(true);
  expect(matches(CHAT, "fence fish")).toBe(false);
  expect(fileName("Über: a/b?", "md")).toBe("U-ber-a-b.md");
  expect(fileName("***", "json")).toBe("chat.json");
});
