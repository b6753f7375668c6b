/**
 * The measured atlas of a model's experts: which topics each of them is asked for.
 *
 * What the server sends has tens of thousands of experts. What is made of it here is flat arrays, one
 * place an expert, which drawing, searching and sorting go through without making anything.
 * Contract: docs/dashboard.md.
 */
import { layOut, ringOrder } from "./galaxy";

export interface Atlas {
  /** The server's name for these very numbers; null: not told. */
  version: string | null;
  /** The model that it was measured with; empty: not told. */
  model: string;
  /** Names of the topics; `top` and `affinity` count in their order. */
  topics: string[];
  /** How many experts the atlas has, by layer and number; the arrays below have a place for each. */
  count: number;
  /** The model's layer, and the number of the expert in it. */
  layers: Uint16Array;
  experts: Uint16Array;
  /** The topic that the expert is asked for most, and that topic's part of all its uses, 0 to 1. */
  top: Uint8Array;
  share: Float32Array;
  /** How evenly its uses are spread over the topics, in bits: 0 one topic alone, log2(topics) all alike. */
  entropy: Float32Array;
  /** 1: a specialist, 0: a generalist, as the measurement has decided. */
  specialist: Uint8Array;
  /** Part of each topic, `topics.length` values an expert, which sum up to 1. */
  affinity: Float32Array;
  /** Null: not told. */
  measurement: Measurement | null;
  /** Place of each topic on the ring: related topics stand side by side. */
  ring: Uint8Array;
  /** x, y, z of each expert; see `layOut`. */
  positions: Float32Array;
}

/** What is sent instead of an atlas is none. */
export class AtlasError extends Error {}

/** How the measurement was made, and whether it shows more than chance would. */
export interface Measurement {
  measured_at_ms: number;
  prompts: number;
  tokens: number;
  /** Experts that were asked for too seldom to say anything of them. */
  left_out: number;
  /** What an expert tells about the topic, and what it would tell by chance, in bits. */
  mutual_information_bits: number;
  chance_bits: number;
  /** How often a topic was guessed rightly from the experts, and would be by chance, 0 to 1; 0: unknown. */
  prediction: number;
  prediction_chance: number;
}

const MOST_TOPICS = 64;

type Json = Record<string, unknown>;
const isObject = (value: unknown): value is Json =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const number = (value: unknown): number =>
  typeof value === "number" && Number.isFinite(value) ? value : 0;

/**
 * Reads an atlas and finds each expert's place. Raises AtlasError if it is not one.
 *
 * Takes tens of milliseconds for a large model, so it runs in a worker.
 */
export function readAtlas(data: unknown, version: string | null = null): Atlas {
  if (!isObject(data)) throw new AtlasError("no object");
  const topics = list(data, "categories").map(String);
  const size = topics.length;
  if (size === 0 || size > MOST_TOPICS) throw new AtlasError(`${size} topics`);
  const count = list(data, "layer").length;
  if (count === 0) throw new AtlasError("no experts");
  const column = (name: string, length = count) => {
    const values = list(data, name);
    if (values.length !== length) throw new AtlasError(`${values.length} values of ${name}`);
    return values.map(number);
  };
  const affinity = shares(column("affinity", count * size), size);
  const top = Uint8Array.from(column("top"), (topic) => Math.min(size - 1, Math.max(0, topic)));
  const atlas = {
    version,
    topics,
    count,
    model: typeof data["model"] === "string" ? data["model"] : "",
    layers: Uint16Array.from(column("layer")),
    experts: Uint16Array.from(column("expert")),
    top,
    share: Float32Array.from(top, (topic, at) => affinity[at * size + topic] ?? 0),
    entropy: Float32Array.from(column("entropy")),
    specialist: Uint8Array.from(list(data, "specialist"), (value) => (value === true ? 1 : 0)),
    affinity,
    measurement: measurementOf(data["measurement"]),
  };
  if (atlas.specialist.length !== count) throw new AtlasError("specialist does not fit");
  if (!inOrder(atlas)) throw new AtlasError("experts are not in order");
  const ring = ringOrder(atlas);
  return { ...atlas, ring, positions: layOut({ ...atlas, ring }) };
}

function list(data: Json, name: string): unknown[] {
  const values = data[name];
  if (!Array.isArray(values)) throw new AtlasError(`no list of ${name}`);
  return values;
}

/** Thousandths to shares that sum up to 1 for each expert. */
function shares(values: number[], size: number): Float32Array {
  const affinity = Float32Array.from(values, (value) => Math.max(0, value));
  for (let base = 0; base < affinity.length; base += size) {
    let sum = 0;
    for (let at = base; at < base + size; at++) sum += affinity[at] ?? 0;
    for (let at = base; at < base + size; at++) affinity[at] = (affinity[at] ?? 0) / (sum || 1);
  }
  return affinity;
}

const MEASURED: readonly (keyof Measurement)[] = [
  "measured_at_ms",
  "prompts",
  "tokens",
  "left_out",
  "mutual_information_bits",
  "chance_bits",
  "prediction",
  "prediction_chance",
];

function measurementOf(data: unknown): Measurement | null {
  if (!isObject(data)) return null;
  const pairs = MEASURED.map((name): [keyof Measurement, number] => [name, number(data[name])]);
  return Object.fromEntries(pairs) as unknown as Measurement;
}

/** How far an expert specialises: 0 all topics alike, 1 one topic alone. */
export function strengthOf(atlas: Atlas, at: number): number {
  const most = Math.log2(atlas.topics.length);
  if (most === 0) return 0;
  return Math.min(1, Math.max(0, 1 - (atlas.entropy[at] ?? 0) / most));
}

/** Where an expert stands in the arrays; -1: the atlas has not measured it. */
export function indexOf(atlas: Atlas, layer: number, expert: number): number {
  let [low, high] = [0, atlas.count - 1];
  while (low <= high) {
    const middle = (low + high) >> 1;
    const side = (atlas.layers[middle] ?? 0) - layer || (atlas.experts[middle] ?? 0) - expert;
    if (side === 0) return middle;
    if (side < 0) low = middle + 1;
    else high = middle - 1;
  }
  return -1;
}

/** Whether every expert stands behind the one before: by layer, then number. */
function inOrder({ layers, experts, count }: Pick<Atlas, "layers" | "experts" | "count">): boolean {
  for (let at = 1; at < count; at++) {
    const side =
      (layers[at] ?? 0) - (layers[at - 1] ?? 0) || (experts[at] ?? 0) - (experts[at - 1] ?? 0);
    if (side <= 0) return false;
  }
  return true;
}

export interface TopicShare {
  topic: number;
  share: number;
}

/** The topics that an expert is asked for most, the first first. */
export function topTopics(atlas: Atlas, at: number, most: number): TopicShare[] {
  const base = at * atlas.topics.length;
  return atlas.topics
    .map((_, topic) => ({ topic, share: atlas.affinity[base + topic] ?? 0 }))
    .sort((a, b) => b.share - a.share || a.topic - b.topic)
    .slice(0, most)
    .filter(({ share }) => share > 0);
}
