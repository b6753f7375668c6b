import { expect, test } from "vitest";
import {
  cellAt,
  decay,
  heightPx,
  type Layout,
  layOut,
  light,
  moved,
  paint,
  paletteOf,
  rectOf,
  widthPx,
} from "./cortex";
import type { ExpertMap, Routed } from "./expertmap";

const COLOURS = {
  ground: "#000000",
  flash: "#ffffff",
  tiers: ["#ff0000", "#00ff00", "#0000ff", "#ffff00"],
};

const SHAPES = [
  [76, 256, 864, 520, 1],
  [76, 256, 328, 420, 1],
  [76, 256, 328, 420, 3],
  [4, 32, 864, 520, 2],
  [1, 8, 300, 300, 1.25],
  [92, 384, 1400, 700, 1.5],
  [256, 8, 864, 520, 1],
] as const;

test.each(SHAPES)("%i x %i cells in %i x %i at ratio %d: each point is in its cell", (...shape) => {
  const layout = layOut(...shape);
  const [rows, cols, width, height, ratio] = shape;
  expect(widthPx(layout) / ratio).toBeLessThanOrEqual(Math.max(width, layout.across / ratio));
  expect(heightPx(layout) / ratio).toBeLessThanOrEqual(Math.max(height, layout.down / ratio));
  for (let cell = 0; cell < rows * cols; cell += 61) {
    const { x, y, width: w, height: h } = rectOf(layout, cell);
    expect(cellAt(layout, x + w / 2, y + h / 2)).toBe(cell);
  }
  expect(cellAt(layout, -1, 0)).toBeNull();
  expect(cellAt(layout, widthPx(layout) / ratio + 1, 0)).toBeNull();
  expect(cellAt(layout, 0, heightPx(layout) / ratio + 1)).toBeNull();
});

test("a tall model stands, a wide one lies, and where neither fits cells stay one pixel", () => {
  expect(layOut(76, 256, 864, 520, 1).turned).toBe(false);
  expect(layOut(256, 8, 864, 520, 1).turned).toBe(true);
  expect(layOut(76, 256, 10, 10, 1)).toMatchObject({ cellWidthPx: 1, cellHeightPx: 1, gapPx: 0 });
});

test.each([false, true])("arrows go as they point and stop at the edges (turned: %s)", (turned) => {
  const layout: Layout = {
    ...layOut(3, 4, 400, 300, 1),
    turned,
    across: turned ? 3 : 4,
    down: turned ? 4 : 3,
  };
  for (let cell = 0; cell < 12; cell++) {
    const at = rectOf(layout, cell);
    for (const [key, dx, dy] of [
      ["ArrowLeft", -1, 0],
      ["ArrowRight", 1, 0],
      ["ArrowUp", 0, -1],
      ["ArrowDown", 0, 1],
    ] as const) {
      const to = rectOf(layout, moved(layout, cell, key) ?? -1);
      const [stepX, stepY] = [Math.sign(to.x - at.x), Math.sign(to.y - at.y)];
      const edge =
        cellAt(layout, at.x + 1 + dx * layout.cellWidthPx, at.y + 1 + dy * layout.cellHeightPx) ===
        null;
      expect([stepX, stepY]).toEqual(edge ? [0, 0] : [dx, dy]);
    }
  }
  expect(moved(layout, 5, "PageDown")).toBe(turned ? 7 : 9);
  expect(moved(layout, 5, "Home")).toBe(turned ? 1 : 4);
  expect(moved(layout, 5, "x")).toBeNull();
});

function mapOf(tiers: number[]): ExpertMap {
  const n = tiers.length;
  return {
    rows: 1,
    cols: n,
    seq: 1,
    turn: 1,
    tiers: Uint8Array.from(tiers),
    heat: new Uint8Array(n),
    hits: new Uint16Array(n),
  };
}

function painted(map: ExpertMap, levels: number[], glow: number[], only: number | null = null) {
  const layout = layOut(map.rows, map.cols, 300, 100, 1);
  const pixels = new Uint8ClampedArray(map.tiers.length * 4);
  const palette = paletteOf(COLOURS, only);
  paint(pixels, layout, map, Uint8Array.from(levels), Float32Array.from(glow), palette);
  return Array.from({ length: map.tiers.length }, (_, at) => [...pixels.slice(at * 4, at * 4 + 4)]);
}

test("the tier gives the colour, the level the brightness, and a flash is white", () => {
  const [disk, ram, dark, lit] = painted(mapOf([0, 1, 1, 2]), [255, 255, 0, 255], [0, 0, 0, 1]);
  expect(disk).toEqual([255, 0, 0, 255]);
  expect(ram).toEqual([0, 255, 0, 255]);
  // What was never asked for is dark and still green.
  expect(dark?.[1]).toBeGreaterThan(20);
  expect(dark?.[1]).toBeLessThan(80);
  expect(lit).toEqual([255, 255, 255, 255]);
});

test("tiers that are not looked at step back", () => {
  const [disk, ram] = painted(mapOf([0, 1]), [255, 255], [0, 0], 1);
  expect(ram).toEqual([0, 255, 0, 255]);
  expect(disk?.[0]).toBeLessThan(40);
});

test("a turned picture has its cells in their places", () => {
  const map = { ...mapOf([0, 0, 0, 1, 1, 1]), rows: 2, cols: 3 };
  const layout = { ...layOut(2, 3, 300, 300, 1), turned: true, across: 2, down: 3 };
  const pixels = new Uint8ClampedArray(24);
  const glow = new Float32Array(6);
  paint(pixels, layout, map, new Uint8Array(6).fill(255), glow, paletteOf(COLOURS, null));
  const red = Array.from({ length: 6 }, (_, at) => pixels[at * 4]);
  expect(red).toEqual([255, 0, 255, 0, 255, 0]);
});

/** One of them so many times, the others once. */
function asked(cells: number[], favourite = -1, times = 1): Routed {
  return {
    cells: Uint32Array.from(cells),
    times: Uint16Array.from(cells, (cell) => (cell === favourite ? times : 1)),
  };
}

test("a flash fades and is over; then nothing glows any more", () => {
  const glow = new Float32Array(100);
  light(glow, asked([3]));
  expect(glow[3]).toBe(1);
  let steps = 0;
  let last = 2;
  while (decay(glow, 16)) {
    expect(glow[3]).toBeLessThan(last);
    last = glow[3] ?? 0;
    steps++;
  }
  expect(glow[3]).toBe(0);
  expect(steps * 16).toBeGreaterThan(400);
  expect(steps * 16).toBeLessThan(2000);
  expect(decay(glow, 16)).toBe(false);
});

test("where most experts are asked for at once only the most wanted flash", () => {
  const glow = new Float32Array(100);
  const all = Array.from({ length: 100 }, (_, at) => at);
  light(glow, asked(all, 7, 4));
  expect(glow[7]).toBe(1);
  expect(glow[8]).toBeLessThan(0.5);
  expect(glow[8]).toBeGreaterThan(0.2);
  // A cell that flashes already is not put out by it.
  light(glow, asked(all, 8, 4));
  expect(glow[7]).toBe(1);
});
