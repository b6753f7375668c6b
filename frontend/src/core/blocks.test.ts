import { expect, test } from "vitest";
import { endsInFence, splitBlocks } from "./blocks";

const cases: [string, string, string[]][] = [
  ["paragraphs", "a\nb\n\nc", ["a\nb\n", "c"]],
  [
    "a fence with blank lines",
    "x\n\n```py\na\n\nb\n```\n\ny",
    ["x\n", "```py\na\n\nb\n```\n", "y"],
  ],
  [
    "a longer fence around a shorter",
    "````\n```\n\n```\n````\n\ny",
    ["````\n```\n\n```\n````\n", "y"],
  ],
  ["a loose list", "- a\n\n- b\n\n  more\n\nend", ["- a\n\n- b\n\n  more\n", "end"]],
  ["an ordered list", "1. a\n\n2. b", ["1. a\n\n2. b"]],
  [
    "a fence in a list",
    "- a\n\n  ```\n  x\n\n  y\n  ```\n\nz",
    ["- a\n\n  ```\n  x\n\n  y\n  ```\n", "z"],
  ],
  ["a formula", "$$\na\n\nb\n$$\n\nc", ["$$\na\n\nb\n$$\n", "c"]],
  ["a formula in brackets", "\\[\na\n\nb\n\\]\n\nc", ["\\[\na\n\nb\n\\]\n", "c"]],
  ["inline code is no fence", "```x``` y\n\nz", ["```x``` y\n", "z"]],
  ["nothing", "", []],
  ["definitions reach over blocks", "[a][1]\n\n[1]: http://x", ["[a][1]\n\n[1]: http://x"]],
];

test.each(cases)("%s", (_, text, blocks) => {
  expect(splitBlocks(text)).toEqual(blocks);
  expect(splitBlocks(text).join("\n")).toBe(text);
});

test("while text grows, blocks before the last stay as they are", () => {
  const text = cases
    .map(([, piece]) => piece)
    .filter((piece) => !piece.includes("]:"))
    .join("\n\n");
  let before: string[] = [];
  for (let length = 1; length <= text.length; length++) {
    const blocks = splitBlocks(text.slice(0, length));
    // A list may take back the block before it for one line; nothing older ever changes.
    const fixed = before.slice(0, -2);
    expect(blocks.slice(0, fixed.length)).toEqual(fixed);
    before = blocks;
  }
});

test("an open fence is known", () => {
  expect(endsInFence("```js\na")).toBe(true);
  expect(endsInFence("```js\na\n```")).toBe(false);
  expect(endsInFence("a `b`")).toBe(false);
});
