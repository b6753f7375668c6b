import { expect, test } from "vitest";
import { AtlasError, indexOf, readAtlas, strengthOf, topTopics } from "./atlas";
import { madeUp } from "./atlas.made";
import { armAngle } from "./galaxy";

const answer = (): Record<string, unknown> => ({
  version: 1,
  model: "m",
  categories: ["code", "cooking", "law"],
  layer: [3, 4],
  expert: [7, 1],
  top: [0, 1],
  specialist: [true, false],
  entropy: [0.469, 1.157],
  affinity: [900, 0, 100, 200, 700, 101],
  tokens: null,
  measurement: null,
});

test("each expert has its topics, its share of the strongest, and what kind it is", () => {
  const atlas = readAtlas(answer());
  expect([...atlas.layers]).toEqual([3, 4]);
  expect([...atlas.experts]).toEqual([7, 1]);
  expect([...atlas.top]).toEqual([0, 1]);
  expect([...atlas.specialist]).toEqual([1, 0]);
  expect(atlas.share[0]).toBeCloseTo(0.9);
  // What was rounded makes no difference.
  expect(atlas.affinity[3]! + atlas.affinity[4]! + atlas.affinity[5]!).toBeCloseTo(1);
  expect(strengthOf(atlas, 0)).toBeCloseTo(1 - 0.469 / Math.log2(3));
  expect(indexOf(atlas, 4, 1)).toBe(1);
  expect(indexOf(atlas, 4, 2)).toBe(-1);
  expect(topTopics(atlas, 0, 3).map(({ topic }) => topic)).toEqual([0, 2]);
  expect(atlas.measurement).toBeNull();
  expect(readAtlas(madeUp(3, 1, 2)).measurement?.prediction).toBe(0.84);
});

test.each<[string, unknown]>([
  ["nothing", null],
  ["a list", []],
  ["a text", "text"],
  ["an empty object", {}],
  ["topics that are no list", { ...answer(), categories: "code" }],
  ["no topics", { ...answer(), categories: [] }],
  ["300 topics", { ...answer(), categories: Array.from({ length: 300 }, (_, at) => `t${at}`) }],
  ["no experts", { ...answer(), layer: [] }],
  ["a column that is too short", { ...answer(), entropy: [1] }],
  ["a column that is missing", { ...answer(), specialist: undefined }],
  ["experts out of order", { ...answer(), layer: [4, 3] }],
  ["an expert that is there twice", { ...answer(), layer: [3, 3], expert: [7, 7] }],
  ["affinity of other topics", { ...answer(), affinity: [1, 2, 3, 4] }],
])("what is no atlas is refused: %s", (_, data) => {
  expect(() => readAtlas(data)).toThrow(AtlasError);
});

test("wrong numbers never become places that cannot be drawn", () => {
  const atlas = readAtlas({
    ...answer(),
    top: [99, "x"],
    entropy: [-5, null],
    affinity: [0, 0, 0, -1, Number.NaN, "9"],
  });
  expect([...atlas.positions].every(Number.isFinite)).toBe(true);
  expect([...atlas.top]).toEqual([2, 0]);
});

test("a single topic is no reason to fail", () => {
  const atlas = readAtlas(madeUp(1, 1, 3));
  expect(strengthOf(atlas, 0)).toBe(0);
  expect([...atlas.positions].every(Number.isFinite)).toBe(true);
});

const data = madeUp(12, 20, 64);

test("the same atlas has the same places every time", () => {
  const again = readAtlas(JSON.parse(JSON.stringify(data)));
  expect(again.positions.join()).toBe(readAtlas(data).positions.join());
});

test("experts of one topic stand closer together than those of different topics", () => {
  const atlas = readAtlas(data);
  const distance = (a: number, b: number) =>
    Math.hypot(...[0, 1, 2].map((d) => atlas.positions[a * 3 + d]! - atlas.positions[b * 3 + d]!));
  const strong = [...atlas.specialist.keys()].filter((at) => atlas.specialist[at] === 1);
  const sums = { same: [0, 0], other: [0, 0] };
  for (const a of strong) {
    for (const b of strong) {
      if (a === b) continue;
      const sum = atlas.top[a] === atlas.top[b] ? sums.same : sums.other;
      sum[0]! += distance(a, b);
      sum[1]! += 1;
    }
  }
  expect(sums.same[1]).toBeGreaterThan(1000);
  const mean = ([sum, number]: number[]) => sum! / number!;
  expect(mean(sums.same)).toBeLessThan(mean(sums.other) * 0.4);
});

test("a specialist lies on its topic's arm, farther out than generalists", () => {
  const atlas = readAtlas(data);
  const radius = (at: number) => Math.hypot(atlas.positions[at * 3]!, atlas.positions[at * 3 + 2]!);
  for (let at = 0; at < atlas.count; at++) {
    expect(radius(at)).toBeLessThan(1.1);
    expect(Math.abs(atlas.positions[at * 3 + 1]!)).toBeLessThan(0.5);
    if (strengthOf(atlas, at) < 0.6) continue;
    expect(radius(at)).toBeGreaterThan(0.7);
    const angle = Math.atan2(atlas.positions[at * 3 + 2]!, atlas.positions[at * 3]!);
    const arm = armAngle(atlas.ring[atlas.top[at]!]!, atlas.topics.length, radius(at));
    const off = Math.abs(((angle - arm + 9 * Math.PI) % (2 * Math.PI)) - Math.PI);
    expect(off).toBeLessThan(Math.PI / atlas.topics.length);
  }
});

test("topics that share their experts are neighbours on the ring", () => {
  // a-d, b-e and c-f go together.
  const affinity = [0, 1, 2].flatMap((pair) =>
    [0, 1, 2, 3, 4, 5].map((topic) => (topic % 3 === pair ? 500 : 0)),
  );
  const atlas = readAtlas({
    categories: ["a", "b", "c", "d", "e", "f"],
    layer: [0, 0, 0],
    expert: [0, 1, 2],
    top: [0, 1, 2],
    specialist: [false, false, false],
    entropy: [1, 1, 1],
    affinity,
  });
  const apart = (a: number, b: number) => {
    const steps = Math.abs(atlas.ring[a]! - atlas.ring[b]!);
    return Math.min(steps, 6 - steps);
  };
  expect([apart(0, 3), apart(1, 4), apart(2, 5)]).toEqual([1, 1, 1]);
  expect([...atlas.ring].sort()).toEqual([0, 1, 2, 3, 4, 5]);
});
