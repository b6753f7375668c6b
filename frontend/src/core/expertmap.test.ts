import { expect, test } from "vitest";
import {
  type ExpertMap,
  hottest,
  levelsOf,
  mapOfSnapshot,
  NONE_ROUTED,
  routedSince,
  type Taken,
  takeFrame,
  totalsOf,
} from "./expertmap";

interface Cells {
  tiers: number[];
  heat: number[];
  hits: number[];
}

interface Head {
  rows?: number;
  cols?: number;
  seq?: number;
  base?: number;
  turn?: number;
  n?: number;
  kind?: number;
  version?: number;
}

/** Bytes as docs/dashboard.md lays them out; with `index` a delta. */
function frame({ tiers, heat, hits }: Cells, index: number[] | null, head: Head = {}) {
  const n = tiers.length;
  const size = index ? 8 * n : 4 * n;
  const buffer = new ArrayBuffer(32 + size);
  const view = new DataView(buffer);
  for (const [at, letter] of [..."CBXM"].entries()) view.setUint8(at, letter.charCodeAt(0));
  view.setUint8(4, head.version ?? 1);
  view.setUint8(5, head.kind ?? (index ? 2 : 1));
  const words = [
    head.rows ?? 2,
    head.cols ?? 3,
    head.seq ?? 1,
    head.base ?? 0,
    head.turn ?? 1,
    head.n ?? n,
  ];
  for (const [at, word] of words.entries()) view.setUint32(8 + 4 * at, word, true);
  const [tierAt, heatAt, hitsAt] = index ? [6 * n, 7 * n, 4 * n] : [0, n, 2 * n];
  for (let at = 0; at < n; at++) {
    if (index) view.setUint32(32 + 4 * at, index[at] ?? 0, true);
    view.setUint8(32 + tierAt + at, tiers[at] ?? 0);
    view.setUint8(32 + heatAt + at, heat[at] ?? 0);
    view.setUint16(32 + hitsAt + 2 * at, hits[at] ?? 0, true);
  }
  return buffer;
}

const WHOLE: Cells = {
  tiers: [0, 1, 2, 3, 0, 1],
  heat: [0, 10, 20, 255, 40, 50],
  hits: [0, 1, 2, 65_535, 4, 0],
};

function mapOf(taken: Taken): ExpertMap {
  if (taken.kind !== "map") throw new Error(JSON.stringify(taken));
  return taken.map;
}

const whole = () => mapOf(takeFrame(frame(WHOLE, null), null));

test("a whole map is read", () => {
  const map = whole();
  expect([map.rows, map.cols, map.seq, map.turn]).toEqual([2, 3, 1, 1]);
  expect([...map.tiers]).toEqual(WHOLE.tiers);
  expect([...map.heat]).toEqual(WHOLE.heat);
  expect([...map.hits]).toEqual(WHOLE.hits);
});

test("a delta makes a new map and leaves the one it applies to", () => {
  const before = whole();
  const change = { tiers: [1, 2], heat: [9, 8], hits: [7, 300] };
  const after = mapOf(takeFrame(frame(change, [0, 4], { seq: 2, base: 1, turn: 1 }), before));
  expect(after.seq).toBe(2);
  expect([...after.tiers]).toEqual([1, 1, 2, 3, 2, 1]);
  expect([...after.heat]).toEqual([9, 10, 20, 255, 8, 50]);
  expect([...after.hits]).toEqual([7, 1, 2, 65_535, 300, 0]);
  expect([...before.tiers]).toEqual(WHOLE.tiers);
});

test("a delta of another map asks for a whole one", () => {
  const none = { tiers: [], heat: [], hits: [] };
  const stale = (head: Head, held: ExpertMap | null) =>
    takeFrame(frame(none, [], { seq: 9, base: 1, ...head }), held).kind;
  expect(stale({}, null)).toBe("stale");
  expect(stale({ base: 7 }, whole())).toBe("stale");
  // As many cells in another shape, after another model was loaded.
  expect(stale({ rows: 3, cols: 2 }, whole())).toBe("stale");
  expect(stale({}, whole())).toBe("map");
});

test("bytes that do not add up are no map, whatever they are", () => {
  const one = { tiers: [0], heat: [0], hits: [0] };
  const broken = (bytes: ArrayBuffer, held: ExpertMap | null = whole()) =>
    expect(takeFrame(bytes, held).kind).toBe("broken");
  broken(new ArrayBuffer(0));
  broken(new ArrayBuffer(32));
  broken(new TextEncoder().encode("CBXM".padEnd(80, "x")).buffer as ArrayBuffer);
  broken(frame(WHOLE, null, { version: 2 }));
  broken(frame(WHOLE, null, { kind: 3 }));
  broken(frame(WHOLE, null, { rows: 0, n: 0 }));
  broken(frame(WHOLE, null, { rows: 0xffffffff, cols: 0xffffffff }));
  broken(frame(WHOLE, null, { n: 5 }));
  broken(frame(WHOLE, null, { rows: 3 }));
  broken(frame({ ...WHOLE, tiers: [0, 1, 2, 4, 0, 1] }, null));
  broken(frame(one, [6], { base: 1 }));
  broken(frame({ ...one, tiers: [9] }, [0], { base: 1 }));
  broken(frame(one, [0], { base: 1, n: 0xffffffff }));
  for (let end = 0; end < frame(WHOLE, null).byteLength; end++) {
    broken(frame(WHOLE, null).slice(0, end));
  }
});

test("random bytes behind a good head never do harm", () => {
  let seed = 1;
  const random = () => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    return seed;
  };
  for (let round = 0; round < 300; round++) {
    const bytes = new Uint8Array(frame(WHOLE, round % 2 ? [0, 1, 2, 3, 4, 5] : null, { base: 1 }));
    for (let at = 0; at < 4; at++) bytes[5 + (random() % (bytes.length - 5))] = random() % 256;
    const taken = takeFrame(bytes.buffer, whole());
    if (taken.kind !== "map") continue;
    expect(taken.map.tiers).toHaveLength(taken.map.rows * taken.map.cols);
    expect(Math.max(...taken.map.tiers)).toBeLessThan(4);
  }
});

test("what GET /experts answers is a map as well", () => {
  const snapshot = { rows: 2, cols: 3, seq: 4, turn: 5, ...WHOLE };
  expect(mapOfSnapshot(snapshot)).toEqual({ ...whole(), seq: 4, turn: 5 });
  expect(mapOfSnapshot({ ...snapshot, rows: 0, tiers: [], heat: [], hits: [] })).toBeNull();
  expect(mapOfSnapshot({ ...snapshot, heat: [1] })).toBeNull();
  expect(mapOfSnapshot({ ...snapshot, tiers: [0, 1, 2, 7, 0, 1] })).toBeNull();
});

test("cells flash that were asked for since the last map, and in a new turn all of its own", () => {
  const before = whole();
  const after = { ...before, hits: Uint16Array.from([1, 1, 3, 65_535, 4, 0]) };
  const { cells, times } = routedSince(before, after);
  expect([[...cells], [...times]]).toEqual([
    [0, 2],
    [1, 1],
  ]);
  const next = { ...before, turn: 2, hits: Uint16Array.from([0, 1, 0, 0, 2, 0]) };
  expect([...routedSince(before, next).cells]).toEqual([1, 4]);
  expect([...routedSince(before, next).times]).toEqual([1, 2]);
  expect(routedSince(null, after)).toBe(NONE_ROUTED);
  expect(routedSince({ ...before, rows: 3, cols: 2 }, after)).toBe(NONE_ROUTED);
});

test("requests of a turn are as bright as their logarithm", () => {
  const map = { ...whole(), hits: Uint16Array.from([0, 1, 3, 7, 15, 255]) };
  expect([...levelsOf(map, "turn")]).toEqual([0, 32, 64, 96, 128, 255]);
  expect(levelsOf(map, "all")).toBe(map.heat);
  expect([...levelsOf({ ...map, hits: new Uint16Array(6) }, "turn")]).toEqual([0, 0, 0, 0, 0, 0]);
});

test("the hottest come first, equal ones in their order, and none that was never asked for", () => {
  const map = { ...whole(), heat: Uint8Array.from([5, 9, 0, 9, 7, 5]) };
  expect(hottest(map, "all", 3)).toEqual([1, 3, 4]);
  expect(hottest(map, "all", 10)).toEqual([1, 3, 4, 0, 5]);
  expect(hottest(map, "turn", 2)).toEqual([3, 4]);
});

test("totals are counted for the whole map and for a layer", () => {
  const map = whole();
  expect(totalsOf(map)).toEqual({ tiers: [2, 2, 1, 1], asked: 4, hits: 65_542 });
  expect(totalsOf(map, 3, 6)).toEqual({ tiers: [1, 1, 0, 1], asked: 2, hits: 65_539 });
});
