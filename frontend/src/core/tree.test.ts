import { expect, test } from "vitest";
import {
  below,
  EMPTY_TREE,
  latestLeaf,
  listOf,
  pathTo,
  showing,
  siblingsOf,
  type Tree,
  treeOf,
  withChanged,
  withMessage,
  without,
} from "./tree";
import type { Message } from "./types";

function message(id: string, parent: string | null): Message {
  return {
    id,
    parent,
    role: "user",
    parts: [{ type: "text", text: id }],
    meta: {},
    created_at_ms: 0,
    updated_at_ms: 0,
  };
}

/** a - b - c, and d beside b with e below it. */
function sample(): Tree {
  const list = [
    message("a", null),
    message("b", "a"),
    message("c", "b"),
    message("d", "a"),
    message("e", "d"),
  ];
  return list.reduce(withMessage, EMPTY_TREE);
}

const ids = (list: readonly Message[]) => list.map(({ id }) => id).join("");

test("a new message ends what is shown", () => {
  const tree = sample();
  expect(tree.active).toBe("e");
  expect(ids(pathTo(tree, tree.active))).toBe("ade");
  expect(siblingsOf(tree, "d")).toEqual(["b", "d"]);
});

test("another branch is shown to its latest end", () => {
  const tree = showing(sample(), "b");
  expect(ids(pathTo(tree, tree.active))).toBe("abc");
  expect(latestLeaf(tree, "a")).toBe("e");
  expect(showing(tree, "unknown")).toBe(tree);
});

test("a list has parents before children and makes the same tree again", () => {
  const tree = sample();
  const again = treeOf(listOf(tree), tree.active);
  expect(again).toEqual(tree);
});

test("messages without their parent, and second ones of an id, are left out", () => {
  const tree = treeOf([message("a", null), message("x", "gone"), message("a", null)], "x");
  expect(ids(listOf(tree))).toBe("a");
  expect(tree.active).toBe("a");
});

test("removing takes what is below and shows the sibling or the parent", () => {
  const left = without(sample(), "d");
  expect(ids(listOf(left))).toBe("abc");
  expect(left.active).toBe("c");
  const rest = without(left, "b");
  expect(ids(listOf(rest))).toBe("a");
  expect(rest.active).toBe("a");
  expect(without(rest, "a").active).toBe(null);
});

test("removing what is not shown moves nothing", () => {
  expect(without(sample(), "b").active).toBe("e");
  expect(below(sample(), "a").sort().join("")).toBe("abcde");
});

test("a change keeps the place and never touches the old tree", () => {
  const tree = sample();
  const before = structuredClone(tree);
  const changed = withChanged(tree, { ...message("b", "a"), parts: [] });
  expect(changed.messages["b"]?.parts).toEqual([]);
  expect(changed.active).toBe("e");
  expect(tree).toEqual(before);
});
