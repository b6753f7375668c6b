/**
 * Where the experts of an atlas stand: a pure function of what was measured, the same every time.
 *
 *     angle    the topics stand on a ring, related ones side by side; an expert lies in the direction
 *              of those that it is asked for, the strongest most
 *     radius   how far it specialises: generalists are the core, one topic alone is the rim
 *     height   its layer, the first at the bottom; the core is thick, the rim is thin
 *
 * The ring is wound up with the radius, so that each topic becomes an arm. A little scatter, from the
 * expert's own numbers, keeps equal ones from covering each other.
 */
import type { Atlas } from "./atlas";

type Measured = Pick<Atlas, "topics" | "count" | "affinity">;

/** From the core to the rim an arm turns by this angle. */
const TWIST = 1.15;
/** Of the core, half up and half down. */
const THICKNESS = 0.5;

/** The radius of an expert that specialises so far (0 to 1); the rim is 1. */
export function radiusOf(strength: number): number {
  return Math.sqrt(Math.min(1, Math.max(0, strength)));
}

/** The angle of a place on the ring at a radius. */
export function armAngle(place: number, topics: number, radius: number): number {
  return (place / topics) * 2 * Math.PI + TWIST * radius;
}

/**
 * Gives each topic its place on a ring so that topics with the same experts are neighbours: first the
 * nearest of those left, then turning pieces round while that helps.
 */
export function ringOrder(atlas: Measured): Uint8Array {
  const topics = atlas.topics.length;
  const likeness = likenesses(atlas);
  const ring = [0];
  const left = new Set(Array.from({ length: topics - 1 }, (_, at) => at + 1));
  while (left.size > 0) {
    const last = ring.at(-1) ?? 0;
    let best = -1;
    for (const topic of left) {
      if (best < 0 || likeness(last, topic) > likeness(last, best)) best = topic;
    }
    ring.push(best);
    left.delete(best);
  }
  untangle(ring, likeness);
  const places = new Uint8Array(topics);
  for (const [place, topic] of ring.entries()) places[topic] = place;
  return places;
}

type Likeness = (a: number, b: number) => number;

/** Cosine of two topics over all experts. */
function likenesses({ topics, count, affinity }: Measured): Likeness {
  const size = topics.length;
  const products = new Float64Array(size * size);
  for (let at = 0; at < count; at++) {
    const base = at * size;
    for (let a = 0; a < size; a++) {
      const part = affinity[base + a] ?? 0;
      if (part === 0) continue;
      for (let b = a; b < size; b++) {
        products[a * size + b] = (products[a * size + b] ?? 0) + part * (affinity[base + b] ?? 0);
      }
    }
  }
  return (a, b) => {
    const product = products[Math.min(a, b) * size + Math.max(a, b)] ?? 0;
    const norm = Math.sqrt((products[a * size + a] ?? 0) * (products[b * size + b] ?? 0));
    return norm > 0 ? product / norm : 0;
  };
}

function untangle(ring: number[], likeness: Likeness): void {
  const size = ring.length;
  const on = (place: number) => ring[((place % size) + size) % size] ?? 0;
  // Each turn makes the ring better, so this ends; the bound is for ties within rounding.
  for (let round = 0; round < size; round++) {
    let turned = false;
    for (let from = 1; from < size - 1; from++) {
      for (let to = from + 1; to < size; to++) {
        const now = likeness(on(from - 1), on(from)) + likeness(on(to), on(to + 1));
        const then = likeness(on(from - 1), on(to)) + likeness(on(from), on(to + 1));
        if (then <= now + 1e-9) continue;
        ring.splice(from, to - from + 1, ...ring.slice(from, to + 1).reverse());
        turned = true;
      }
    }
    if (!turned) return;
  }
}

/** How many colours topics have; neighbours on the ring never have the same one. */
export const COLOURS = 12;

/** Which of the colours the topic at a place of the ring has. */
export function colourOf(place: number, topics: number): number {
  const colour = place % COLOURS;
  // The last stands beside the first again.
  return place > 0 && place === topics - 1 && colour === 0 ? COLOURS / 2 : colour;
}

/** A colour's red, green and blue, 0 to 255. */
export type Colour = readonly [number, number, number];

/** What a point looks like by its fourth value: only hinted at, or shown, larger if a specialist. */
export const FAINT = 0;
export const SHOWN = 128;
export const SPECIALIST = 255;

/** Writes red, green, blue and look of every expert, four bytes each. */
export function shade(
  atlas: Pick<Atlas, "topics" | "count" | "top" | "ring" | "specialist">,
  shown: Uint8Array,
  palette: readonly Colour[],
  into: Uint8Array,
): void {
  const colours = atlas.topics.map(
    (_, topic) => palette[colourOf(atlas.ring[topic] ?? 0, atlas.topics.length)] ?? [0, 0, 0],
  );
  for (let at = 0; at < atlas.count; at++) {
    const [red, green, blue] = colours[atlas.top[at] ?? 0] as Colour;
    into[at * 4] = red;
    into[at * 4 + 1] = green;
    into[at * 4 + 2] = blue;
    into[at * 4 + 3] = !shown[at] ? FAINT : atlas.specialist[at] ? SPECIALIST : SHOWN;
  }
}

/** x, y, z of every expert, within the cylinder of radius 1.1 and height 1. */
export function layOut(atlas: Omit<Atlas, "positions">): Float32Array {
  const { count, affinity, layers, experts, ring, entropy } = atlas;
  const topics = atlas.topics.length;
  const most = Math.log2(topics) || 1;
  const [first, last] = ends(layers);
  const positions = new Float32Array(count * 3);
  for (let at = 0; at < count; at++) {
    let x = 0;
    let z = 0;
    for (let topic = 0; topic < topics; topic++) {
      // Squared: many weak topics do not pull an expert away from its strong one.
      const pull = (affinity[at * topics + topic] ?? 0) ** 2;
      const angle = armAngle(ring[topic] ?? 0, topics, 0);
      x += pull * Math.cos(angle);
      z += pull * Math.sin(angle);
    }
    const layer = layers[at] ?? 0;
    const expert = experts[at] ?? 0;
    const strength = topics > 1 ? 1 - (entropy[at] ?? 0) / most : 0;
    const radius = radiusOf(strength) * (1 + 0.05 * scatter(layer, expert, 1));
    const width = (2 * Math.PI) / topics;
    const angle = Math.atan2(z, x) + TWIST * radius + 0.3 * width * scatter(layer, expert, 2);
    const level = last > first ? (layer - first) / (last - first) - 0.5 : 0;
    const thickness = THICKNESS * (1 - 0.65 * Math.min(1, radius));
    positions[at * 3] = radius * Math.cos(angle);
    positions[at * 3 + 1] = thickness * (level + 0.06 * scatter(layer, expert, 3));
    positions[at * 3 + 2] = radius * Math.sin(angle);
  }
  return positions;
}

function ends(values: Uint16Array): [number, number] {
  let first = values[0] ?? 0;
  let last = first;
  for (const value of values) {
    if (value < first) first = value;
    if (value > last) last = value;
  }
  return [first, last];
}

/** Between -1 and 1, mostly near 0, and always the same for the same expert. */
function scatter(layer: number, expert: number, salt: number): number {
  return mix(layer, expert, salt) + mix(layer, expert, salt + 16) - 1;
}

/** A number of [0, 1) out of three; bits of each reach all of it. */
function mix(layer: number, expert: number, salt: number): number {
  let bits = (layer << 16) ^ expert ^ (salt << 26);
  bits = Math.imul(bits ^ (bits >>> 16), 0x45d9f3b);
  bits = Math.imul(bits ^ (bits >>> 15), 0x2c1b3c6d);
  return ((bits ^ (bits >>> 16)) >>> 0) / 2 ** 32;
}
