/**
 * Maps of experts: where each one lies, how hot it is, how often the latest turn has asked for it.
 *
 * They come as bytes, whole or as what has changed (docs/dashboard.md, "Maps"), or as the lists of
 * `GET /experts`. A map is never changed: taking a delta makes a new one, so whoever holds two can
 * compare them. Bytes are believed only where they add up.
 */

/** Names of the tiers, by their number in a map. */
export const TIERS = ["disk", "ram", "vram", "coming"] as const;
export type TierName = (typeof TIERS)[number];

export interface ExpertMap {
  /** A cell is `row * cols + expert`. */
  rows: number;
  cols: number;
  seq: number;
  /** The turn that `hits` counts. */
  turn: number;
  /** One element a cell: number of the tier, heat 0 to 255, requests of the turn. */
  tiers: Uint8Array;
  heat: Uint8Array;
  hits: Uint16Array;
}

export type Taken =
  | { kind: "map"; map: ExpertMap }
  /** A delta of a map that we do not have: a whole one must be asked for. */
  | { kind: "stale" }
  | { kind: "broken"; reason: string };

const MAGIC = 0x4d584243; // "CBXM"
const VERSION = 1;
const FULL = 1;
const DELTA = 2;
const HEAD_BYTES = 32;
/** More than any model has by far, and still drawn in a moment. */
const MOST_CELLS = 1 << 20;

/** Takes the bytes of a message; `held` is the map that deltas may apply to. */
export function takeFrame(frame: ArrayBuffer, held: ExpertMap | null): Taken {
  const broken = (reason: string): Taken => ({ kind: "broken", reason });
  if (frame.byteLength < HEAD_BYTES) return broken("it ends inside its head");
  const view = new DataView(frame);
  const word = (at: number) => view.getUint32(at, true);
  if (word(0) !== MAGIC) return broken("it is no map");
  if (view.getUint8(4) !== VERSION) return broken(`its version is ${view.getUint8(4)}`);
  const [rows, cols, seq, base, turn, n] = [8, 12, 16, 20, 24, 28].map(word) as Six;
  const cells = rows * cols;
  if (cells === 0 || cells > MOST_CELLS) return broken(`it has ${rows} rows of ${cols}`);
  const kind = view.getUint8(5);
  if (kind === FULL) {
    if (n !== cells || frame.byteLength !== HEAD_BYTES + 4 * n) return broken("its size is wrong");
    const tiers = new Uint8Array(frame.slice(HEAD_BYTES, HEAD_BYTES + n));
    const heat = new Uint8Array(frame.slice(HEAD_BYTES + n, HEAD_BYTES + 2 * n));
    const hits = new Uint16Array(n);
    for (let at = 0; at < n; at++) hits[at] = view.getUint16(HEAD_BYTES + 2 * (n + at), true);
    if (tiers.some((tier) => tier >= TIERS.length)) return broken("it has an unknown tier");
    return { kind: "map", map: { rows, cols, seq, turn, tiers, heat, hits } };
  }
  if (kind !== DELTA) return broken(`its kind is ${kind}`);
  if (n > cells || frame.byteLength !== HEAD_BYTES + 8 * n) return broken("its size is wrong");
  if (!held || held.seq !== base || held.rows !== rows || held.cols !== cols) {
    return { kind: "stale" };
  }
  const { tiers, heat, hits } = copyOf(held);
  for (let at = 0; at < n; at++) {
    const cell = word(HEAD_BYTES + 4 * at);
    const tier = view.getUint8(HEAD_BYTES + 6 * n + at);
    if (cell >= cells) return broken("it names a cell beyond its end");
    if (tier >= TIERS.length) return broken("it has an unknown tier");
    hits[cell] = view.getUint16(HEAD_BYTES + 4 * n + 2 * at, true);
    tiers[cell] = tier;
    heat[cell] = view.getUint8(HEAD_BYTES + 7 * n + at);
  }
  return { kind: "map", map: { rows, cols, seq, turn, tiers, heat, hits } };
}

type Six = [number, number, number, number, number, number];

function copyOf({ tiers, heat, hits }: ExpertMap) {
  return { tiers: tiers.slice(), heat: heat.slice(), hits: hits.slice() };
}

/** What `GET /experts` answers. */
export interface ExpertSnapshot {
  rows: number;
  cols: number;
  tiers: number[];
  heat: number[];
  hits: number[];
  seq: number;
  turn: number;
}

/** The map of a snapshot; null for a dense model, and where the lists do not add up. */
export function mapOfSnapshot(snapshot: ExpertSnapshot): ExpertMap | null {
  const { rows, cols, seq, turn, tiers, heat, hits } = snapshot;
  const cells = rows * cols;
  if (!(cells > 0 && cells <= MOST_CELLS)) return null;
  if ([tiers, heat, hits].some((list) => list.length !== cells)) return null;
  if (tiers.some((tier) => !(tier in TIERS))) return null;
  return {
    rows,
    cols,
    seq,
    turn,
    tiers: Uint8Array.from(tiers),
    heat: Uint8Array.from(heat),
    hits: Uint16Array.from(hits),
  };
}

/** What was asked for between two maps: cells, and how often each of them. */
export interface Routed {
  cells: Uint32Array;
  times: Uint16Array;
}

export const NONE_ROUTED: Routed = { cells: new Uint32Array(0), times: new Uint16Array(0) };

/** Nothing where the maps cannot be compared. */
export function routedSince(before: ExpertMap | null, after: ExpertMap): Routed {
  if (!before || before.rows !== after.rows || before.cols !== after.cols) return NONE_ROUTED;
  const sameTurn = before.turn === after.turn;
  const cells: number[] = [];
  const times: number[] = [];
  for (let cell = 0; cell < after.hits.length; cell++) {
    const more = (after.hits[cell] ?? 0) - (sameTurn ? (before.hits[cell] ?? 0) : 0);
    if (more <= 0) continue;
    cells.push(cell);
    times.push(more);
  }
  return { cells: Uint32Array.from(cells), times: Uint16Array.from(times) };
}

/** What brightness shows: how often the turn asked for an expert, or all turns ever. */
export type Span = "turn" | "all";

/** Brightness of each cell, 0 to 255. Requests of a turn are shown as heat is: by their logarithm. */
export function levelsOf(map: ExpertMap, span: Span): Uint8Array {
  if (span === "all") return map.heat;
  let most = 0;
  for (const hits of map.hits) if (hits > most) most = hits;
  if (most === 0) return new Uint8Array(map.hits.length);
  const scale = 255 / Math.log1p(most);
  const byHits = new Uint8Array(most + 1);
  for (let hits = 0; hits <= most; hits++) byHits[hits] = Math.ceil(Math.log1p(hits) * scale);
  return Uint8Array.from(map.hits, (hits) => byHits[hits] ?? 0);
}

/** The cells that were asked for most, the first first; those never asked for are left out. */
export function hottest(map: ExpertMap, span: Span, most: number): number[] {
  const values: ArrayLike<number> = span === "all" ? map.heat : map.hits;
  const best: number[] = [];
  for (let cell = 0; cell < values.length; cell++) {
    const value = values[cell] ?? 0;
    if (value === 0) continue;
    if (best.length === most && value <= (values[best[most - 1] ?? 0] ?? 0)) continue;
    let at = best.length;
    while (at > 0 && (values[best[at - 1] ?? 0] ?? 0) < value) at--;
    best.splice(at, 0, cell);
    if (best.length > most) best.pop();
  }
  return best;
}

/** Sums over some cells of a map. */
export interface Totals {
  /** Experts in each tier, by the tier's number. */
  tiers: [number, number, number, number];
  /** Experts that the turn has asked for, and its requests. */
  asked: number;
  hits: number;
}

/** Totals of the cells from `start` to before `end`; without them of the whole map. */
export function totalsOf(map: ExpertMap, start = 0, end = map.hits.length): Totals {
  const totals: Totals = { tiers: [0, 0, 0, 0], asked: 0, hits: 0 };
  for (let cell = start; cell < end; cell++) {
    const tier = (map.tiers[cell] ?? 0) as 0 | 1 | 2 | 3;
    const hits = map.hits[cell] ?? 0;
    totals.tiers[tier]++;
    if (hits > 0) totals.asked++;
    totals.hits += hits;
  }
  return totals;
}
