/** Which experts of an atlas are shown, in what order, and how many there are of each kind. */
import { type Atlas, strengthOf } from "./atlas";

export type Kind = "all" | "specialists" | "generalists";

export interface AtlasFilter {
  /** Names of topics; none: all of them. */
  topics: readonly string[];
  kind: Kind;
  /** What was typed: `12:34`, `12:`, a number (a layer or an expert), or a piece of a topic's name. */
  query: string;
}

/** 1 for each expert that is shown. Every word of the query must fit. */
export function shownExperts(atlas: Atlas, filter: AtlasFilter): Uint8Array {
  // Names that another model's atlas had filter nothing here.
  const names = filter.topics.filter((name) => atlas.topics.includes(name));
  const wanted = atlas.topics.map((name) => names.length === 0 || names.includes(name));
  const words = filter.query.split(/\s+/).filter(Boolean);
  const tests = words.map((word) => wordTest(atlas, word));
  const shown = new Uint8Array(atlas.count);
  for (let at = 0; at < atlas.count; at++) {
    if (!wanted[atlas.top[at] ?? 0]) continue;
    if (filter.kind !== "all" && (filter.kind === "specialists") !== (atlas.specialist[at] === 1)) {
      continue;
    }
    if (tests.every((test) => test(at))) shown[at] = 1;
  }
  return shown;
}

function wordTest(atlas: Atlas, word: string): (at: number) => boolean {
  const pair = /^(\d+):(\d*)$/.exec(word);
  if (pair) {
    const layer = Number(pair[1]);
    const expert = pair[2] ? Number(pair[2]) : null;
    return (at) => atlas.layers[at] === layer && (expert === null || atlas.experts[at] === expert);
  }
  if (/^\d+$/.test(word)) {
    const number = Number(word);
    return (at) => atlas.layers[at] === number || atlas.experts[at] === number;
  }
  const piece = folded(word);
  const fits = atlas.topics.map((name) => folded(name).includes(piece));
  return (at) => fits[atlas.top[at] ?? 0] === true;
}

/** Without case and accents. */
function folded(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

export function countShown(shown: Uint8Array): number {
  let sum = 0;
  for (const one of shown) sum += one;
  return sum;
}

export interface TopicCount {
  topic: number;
  name: string;
  /** Experts whose strongest topic it is, and the specialists among them. */
  experts: number;
  specialists: number;
}

/** How many experts each topic has, in the order of the ring. */
export function countTopics(atlas: Atlas): TopicCount[] {
  const counts = atlas.topics.map((name, topic) => ({ topic, name, experts: 0, specialists: 0 }));
  for (let at = 0; at < atlas.count; at++) {
    const count = counts[atlas.top[at] ?? 0];
    if (!count) continue;
    count.experts++;
    count.specialists += atlas.specialist[at] ?? 0;
  }
  return counts.sort((a, b) => (atlas.ring[a.topic] ?? 0) - (atlas.ring[b.topic] ?? 0));
}

export type Column = "expert" | "topic" | "share" | "entropy" | "kind";

export interface Order {
  column: Column;
  /** From the largest, or the last of the alphabet, on. */
  down: boolean;
}

/** Finer than anything that is shown of a value. */
const FINENESS = 2 ** 20;

/** Indices of the shown experts in an order; equal ones by layer and number. */
export function sortedExperts(atlas: Atlas, shown: Uint8Array, order: Order): Uint32Array {
  const value = rankOf(atlas, order.column);
  const sign = order.down ? -1 : 1;
  // Each key is a value and, behind it, an index. Numbers alone are sorted at once; a comparison for
  // each pair would keep the page from answering.
  const keys = new Float64Array(countShown(shown));
  let length = 0;
  for (let at = 0; at < atlas.count; at++) {
    if (shown[at]) keys[length++] = sign * Math.round(value(at) * FINENESS) * atlas.count + at;
  }
  keys.sort();
  const list = new Uint32Array(length);
  for (let at = 0; at < length; at++) {
    const rest = (keys[at] ?? 0) % atlas.count;
    list[at] = rest < 0 ? rest + atlas.count : rest;
  }
  return list;
}

/** What a column is sorted by: numbers from 0 to 64, whatever the atlas says. */
function rankOf(atlas: Atlas, column: Column): (at: number) => number {
  switch (column) {
    case "expert":
      // As they come: by layer and number.
      return (at) => at / atlas.count;
    case "topic": {
      const names = [...atlas.topics.keys()].sort((a, b) =>
        (atlas.topics[a] ?? "").localeCompare(atlas.topics[b] ?? ""),
      );
      const places = new Uint8Array(names.length);
      for (const [place, topic] of names.entries()) places[topic] = place;
      return (at) => places[atlas.top[at] ?? 0] ?? 0;
    }
    case "share":
      return (at) => atlas.share[at] ?? 0;
    case "entropy":
      return (at) => Math.min(64, Math.max(0, atlas.entropy[at] ?? 0));
    case "kind":
      return (at) => (atlas.specialist[at] ?? 0) + strengthOf(atlas, at) / 2;
  }
}

/** The next shown expert (step 1) or the one before (-1), round in a circle; -1: none is shown. */
export function neighbour(shown: Uint8Array, at: number, step: 1 | -1): number {
  const { length } = shown;
  const start = at >= 0 ? at : step === 1 ? -1 : 0;
  for (let away = 1; away <= length; away++) {
    const next = (start + step * away + length * 2) % length;
    if (shown[next]) return next;
  }
  return -1;
}
