/**
 * How a map of experts becomes a picture: where each cell lies, which colour it has, how it glows.
 *
 * The picture is made with one pixel for each cell and enlarged by the canvas, so a frame costs the
 * same whatever size it is shown at. Sizes named `...Px` are pixels of the screen's device; all
 * others are those of the page.
 */
import { type ExpertMap, type Routed, TIERS } from "./expertmap";

export interface Layout {
  rows: number;
  cols: number;
  /** Layers run from left to right instead of from top to bottom. */
  turned: boolean;
  /** Cells from left to right, and from top to bottom. */
  across: number;
  down: number;
  /** A cell with the gap at its end. */
  cellWidthPx: number;
  cellHeightPx: number;
  gapPx: number;
  /** Pixels of the device for one of the page. */
  ratio: number;
}

/** No cell needs to be larger, nor much longer than wide. */
const LARGEST = 30;
const LONGEST = 3;
/** Smaller cells have no room for a gap. */
const GAP_FROM_PX = 4;
/** The other way round is unusual: it must be that much larger. */
const TURN_GAIN = 1.4;

/** The largest cells for the room there is (`width`, `height` in the page's pixels). */
export function layOut(
  rows: number,
  cols: number,
  width: number,
  height: number,
  ratio: number,
): Layout {
  const [straight, turned] = [false, true].map((turn) => {
    const [across, down] = turn ? [rows, cols] : [cols, rows];
    const most = Math.floor(LARGEST * ratio);
    const size = (room: number, cells: number) =>
      Math.min(most, Math.max(1, Math.floor((room * ratio) / Math.max(1, cells))));
    const [w, h] = [size(width, across), size(height, down)];
    const cellWidthPx = Math.min(w, h * LONGEST);
    const cellHeightPx = Math.min(h, w * LONGEST);
    const least = Math.min(cellWidthPx, cellHeightPx);
    const gapPx = least < GAP_FROM_PX ? 0 : Math.max(1, Math.round(least / 10));
    return { rows, cols, turned: turn, across, down, cellWidthPx, cellHeightPx, gapPx, ratio };
  }) as [Layout, Layout];
  const area = (layout: Layout) => layout.cellWidthPx * layout.cellHeightPx;
  return area(turned) > TURN_GAIN * area(straight) ? turned : straight;
}

export const widthPx = (layout: Layout): number => layout.across * layout.cellWidthPx;
export const heightPx = (layout: Layout): number => layout.down * layout.cellHeightPx;

/** The cell at a point of the picture; null beside it. */
export function cellAt(layout: Layout, x: number, y: number): number | null {
  const at = Math.floor((x * layout.ratio) / layout.cellWidthPx);
  const below = Math.floor((y * layout.ratio) / layout.cellHeightPx);
  if (at < 0 || below < 0 || at >= layout.across || below >= layout.down) return null;
  return layout.turned ? at * layout.cols + below : below * layout.cols + at;
}

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Where a cell lies in the picture. */
export function rectOf(layout: Layout, cell: number): Rect {
  const [row, col] = [Math.floor(cell / layout.cols), cell % layout.cols];
  const [at, below] = layout.turned ? [row, col] : [col, row];
  return {
    x: (at * layout.cellWidthPx) / layout.ratio,
    y: (below * layout.cellHeightPx) / layout.ratio,
    width: (layout.cellWidthPx - layout.gapPx) / layout.ratio,
    height: (layout.cellHeightPx - layout.gapPx) / layout.ratio,
  };
}

const PAGE = 10;

/** The cell that a key leads to; null: the key does not move. Arrows go as they point. */
export function moved(layout: Layout, cell: number, key: string): number | null {
  const { across, down, turned, cols } = layout;
  const [row, col] = [Math.floor(cell / cols), cell % cols];
  const [at, below] = turned ? [row, col] : [col, row];
  const go = (x: number, y: number) => {
    const [toX, toY] = [clamp(x, across), clamp(y, down)];
    return turned ? toX * cols + toY : toY * cols + toX;
  };
  switch (key) {
    case "ArrowLeft":
      return go(at - 1, below);
    case "ArrowRight":
      return go(at + 1, below);
    case "ArrowUp":
      return go(at, below - 1);
    case "ArrowDown":
      return go(at, below + 1);
    case "PageUp":
      return go(at, below - PAGE);
    case "PageDown":
      return go(at, below + PAGE);
    case "Home":
      return go(0, below);
    case "End":
      return go(across - 1, below);
    default:
      return null;
  }
}

const clamp = (value: number, end: number) => Math.min(end - 1, Math.max(0, value));

export interface Colours {
  ground: string;
  flash: string;
  /** By the number of the tier. */
  tiers: string[];
}

/** Colours of the cells by tier and brightness, and what they flash in: red, green, blue. */
export interface Palette {
  cells: Uint8Array;
  flash: [number, number, number];
}

const SHADES = 256;
/** An expert that was never asked for is still to be seen, and so is its tier. */
const DARKEST = 0.14;
/** Heat is a logarithm already; raised to this, the hottest stand out again. */
const CONTRAST = 1.8;
/** What is left of tiers that are not looked at. */
const ASIDE = 0.12;

/** `only`: the number of the tier that is looked at; the others step back. */
export function paletteOf(colours: Colours, only: number | null): Palette {
  const ground = rgb(colours.ground);
  const cells = new Uint8Array(TIERS.length * SHADES * 3);
  for (let tier = 0; tier < TIERS.length; tier++) {
    const colour = rgb(colours.tiers[tier] ?? colours.flash);
    for (let shade = 0; shade < SHADES; shade++) {
      const share = (shade / (SHADES - 1)) ** CONTRAST * (1 - DARKEST) + DARKEST;
      const part = only === null || only === tier ? share : share * ASIDE;
      for (let channel = 0; channel < 3; channel++) {
        const [from, to] = [ground[channel] ?? 0, colour[channel] ?? 0];
        cells[(tier * SHADES + shade) * 3 + channel] = Math.round(from + (to - from) * part);
      }
    }
  }
  return { cells, flash: rgb(colours.flash) };
}

/** `#rrggbb`, as the tokens are written. */
function rgb(hex: string): [number, number, number] {
  const value = Number.parseInt(hex.trim().slice(1, 7), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/**
 * Fills the picture: RGBA, one pixel a cell, `across` times `down` of them. `levels` is the
 * brightness of each cell, `glow` how much it flashes, 0 to 1.
 */
export function paint(
  pixels: Uint8ClampedArray,
  layout: Layout,
  map: ExpertMap,
  levels: Uint8Array,
  glow: Float32Array,
  { cells, flash }: Palette,
): void {
  const { turned, cols, rows } = layout;
  const [red, green, blue] = flash;
  for (let cell = 0; cell < map.tiers.length; cell++) {
    const at = turned ? (cell % cols) * rows + Math.floor(cell / cols) : cell;
    const from = ((map.tiers[cell] ?? 0) * SHADES + (levels[cell] ?? 0)) * 3;
    const part = glow[cell] ?? 0;
    const [r, g, b] = [cells[from] ?? 0, cells[from + 1] ?? 0, cells[from + 2] ?? 0];
    pixels[at * 4] = r + (red - r) * part;
    pixels[at * 4 + 1] = g + (green - g) * part;
    pixels[at * 4 + 2] = b + (blue - b) * part;
    pixels[at * 4 + 3] = 255;
  }
}

/** A flash falls to a third in so many milliseconds, and is over when it can no longer be seen. */
const DECAY_MS = 260;
const INVISIBLE = 1 / 128;
/**
 * Where a large part is asked for at once (a prompt, or many tokens through a small model), only the
 * most wanted flash white and the rest brightens, so that the picture does not flicker as a whole.
 */
const MANY = 0.2;
const MANY_GLOW = 0.3;

/** Lets the cells flash that have just been asked for. */
export function light(glow: Float32Array, { cells, times }: Routed): void {
  const many = cells.length > MANY * glow.length;
  let most = 0;
  for (const count of times) if (count > most) most = count;
  for (let at = 0; at < cells.length; at++) {
    const cell = cells[at] ?? 0;
    const share = (times[at] ?? 0) / most;
    const value = many ? MANY_GLOW + (1 - MANY_GLOW) * share * share : 1;
    if ((glow[cell] ?? 1) < value) glow[cell] = value;
  }
}

/** Lets `ms` milliseconds pass; true while something still glows. */
export function decay(glow: Float32Array, ms: number): boolean {
  const factor = Math.exp(-Math.max(0, ms) / DECAY_MS);
  let any = false;
  for (let cell = 0; cell < glow.length; cell++) {
    const value = glow[cell] ?? 0;
    if (value === 0) continue;
    const next = value * factor;
    glow[cell] = next < INVISIBLE ? 0 : next;
    if (next >= INVISIBLE) any = true;
  }
  return any;
}
