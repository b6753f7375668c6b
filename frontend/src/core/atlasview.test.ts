import { expect, test } from "vitest";
import { readAtlas } from "./atlas";
import { madeUp } from "./atlas.made";
import {
  type AtlasFilter,
  countShown,
  countTopics,
  neighbour,
  shownExperts,
  sortedExperts,
} from "./atlasview";

const atlas = readAtlas(madeUp(6, 4, 16));
const ALL: AtlasFilter = { topics: [], kind: "all", query: "" };
const listed = (filter: Partial<AtlasFilter>) => {
  const shown = shownExperts(atlas, { ...ALL, ...filter });
  return [...shown.keys()].filter((at) => shown[at] === 1);
};
const name = (at: number) => `${atlas.layers[at]}:${atlas.experts[at]}`;

test("without a filter everything is shown", () => {
  expect(listed({})).toHaveLength(64);
});

test("numbers are layers, experts or both", () => {
  expect(listed({ query: "4:15" }).map(name)).toEqual(["4:15"]);
  expect(listed({ query: "4:" })).toHaveLength(16);
  expect(listed({ query: "5" }).map(name)).toEqual([
    "3:5",
    "4:5",
    ...listed({ query: "5:" }).map(name),
    "6:5",
  ]);
  expect(listed({ query: "99:1" })).toEqual([]);
});

test("words are pieces of a topic's name, in any case; all words must fit", () => {
  const cooking = listed({ query: "COOK" });
  expect(cooking.length).toBeGreaterThan(0);
  expect(cooking.every((at) => atlas.topics[atlas.top[at]!] === "cooking")).toBe(true);
  expect(listed({ query: "cook 4:" })).toEqual(cooking.filter((at) => atlas.layers[at] === 4));
  expect(listed({ query: "nothing-like-that" })).toEqual([]);
});

test("topics and kinds filter together, and the counts agree", () => {
  for (const { topic, name: title, experts, specialists } of countTopics(atlas)) {
    const all = listed({ topics: [title] });
    expect(all).toHaveLength(experts);
    expect(all.every((at) => atlas.top[at] === topic)).toBe(true);
    expect(listed({ topics: [title], kind: "specialists" })).toHaveLength(specialists);
    expect(listed({ topics: [title], kind: "generalists" })).toHaveLength(experts - specialists);
  }
  expect(listed({ topics: ["a topic of another model"] })).toHaveLength(64);
  expect(listed({ topics: ["code", "law"] }).length).toBe(
    listed({ topics: ["code"] }).length + listed({ topics: ["law"] }).length,
  );
});

test.each(["expert", "topic", "share", "entropy", "kind"] as const)("sorts by %s", (column) => {
  const shown = shownExperts(atlas, { ...ALL, topics: ["code", "law"] });
  const up = [...sortedExperts(atlas, shown, { column, down: false })];
  const down = [...sortedExperts(atlas, shown, { column, down: true })];
  expect(up).toHaveLength(countShown(shown));
  expect([...up].sort((a, b) => a - b)).toEqual([...down].sort((a, b) => a - b));
  const value = {
    expert: (at: number) => atlas.layers[at]! * 1000 + atlas.experts[at]!,
    topic: (at: number) => ["code", "law"].indexOf(atlas.topics[atlas.top[at]!]!),
    share: (at: number) => atlas.share[at]!,
    entropy: (at: number) => atlas.entropy[at]!,
    kind: (at: number) => atlas.specialist[at]!,
  }[column];
  for (const [at, one] of up.entries()) {
    if (at > 0) expect(value(one)).toBeGreaterThanOrEqual(value(up[at - 1]!));
  }
  expect(value(down[0]!)).toBe(value(up.at(-1)!));
});

test("the next shown expert goes round in a circle", () => {
  const shown = Uint8Array.of(0, 1, 0, 1);
  expect(neighbour(shown, -1, 1)).toBe(1);
  expect(neighbour(shown, 1, 1)).toBe(3);
  expect(neighbour(shown, 3, 1)).toBe(1);
  expect(neighbour(shown, -1, -1)).toBe(3);
  expect(neighbour(shown, 1, -1)).toBe(3);
  expect(neighbour(Uint8Array.of(0, 0), 0, 1)).toBe(-1);
  expect(neighbour(new Uint8Array(0), -1, 1)).toBe(-1);
});
