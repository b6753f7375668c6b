/// <reference types="node" />
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

const css = readFileSync(join(import.meta.dirname, "tokens.css"), "utf8");

function theme(name: string): Record<string, string> {
  const block = css.slice(css.indexOf(`[data-theme="${name}"] {`));
  const body = block.slice(0, block.indexOf("}"));
  return Object.fromEntries(
    [...body.matchAll(/--([\w-]+): (#[0-9a-f]{6});/g)].map((m) => [m[1], m[2]]),
  );
}

function luminance(hex: string): number {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const value = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a: string, b: string): number {
  const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x) as [number, number];
  return (light + 0.05) / (dark + 0.05);
}

const surfaces = ["surface-0", "surface-1", "surface-2"];
/** Text on what is behind it: at least 4.5 to 1. */
const texts: [string, string][] = [
  ...["text-1", "text-2", "text-3", "accent"].flatMap((text) =>
    surfaces.map((surface): [string, string] => [text, surface]),
  ),
  ["text-1", "surface-3"],
  ["text-2", "surface-3"],
  ["on-accent", "accent"],
  ["text-1", "accent-soft"],
  ["accent-strong", "accent-soft"],
  ["warn", "warn-soft"],
  ["warn", "surface-1"],
  ["danger", "danger-soft"],
  ["text-2", "danger-soft"],
  ["danger", "surface-1"],
  ["ruby", "surface-0"],
  ["surface-1", "ruby"],
  ["surface-1", "text-1"],
  ["cortex-text", "cortex-ground"],
  ["cortex-text", "cortex-lift"],
  ["cortex-flash", "cortex-lift"],
  ...["keyword", "string", "number", "title", "comment"].map((name): [string, string] => [
    `code-${name}`,
    "surface-1",
  ]),
];
/** Marks that are not text: at least 3 to 1. */
const marks: [string, string][] = [
  ...["tier-vram", "tier-ram", "tier-disk", "accent"].map((mark): [string, string] => [
    mark,
    "surface-1",
  ]),
  ...["vram", "ram", "disk", "coming"].map((tier): [string, string] => [
    `cortex-${tier}`,
    "cortex-ground",
  ]),
];

test.each(["light", "dark"])("every pair of colours in use can be read: %s", (name) => {
  const colours = theme(name);
  for (const [list, least] of [
    [texts, 4.5],
    [marks, 3],
  ] as const) {
    for (const [front, back] of list) {
      const value = contrast(colours[front] ?? "", colours[back] ?? "");
      expect(value, `${front} on ${back}`).toBeGreaterThanOrEqual(least);
    }
  }
});

const TOPICS = Array.from({ length: 12 }, (_, at) => `topic-${at + 1}`);

test.each(["light", "dark"])("points in a topic's colour stand out: %s", (name) => {
  const colours = theme(name);
  for (const topic of TOPICS) {
    for (const surface of ["surface-0", "surface-1"]) {
      const value = contrast(colours[topic] ?? "", colours[surface] ?? "");
      expect(value, `${topic} on ${surface}`).toBeGreaterThanOrEqual(3);
    }
  }
});

/** How each kind of eye sees linear red, green and blue (Machado and others, 2009, whole severity). */
const EYES: Record<string, number[][]> = {
  usual: [
    [1, 0, 0],
    [0, 1, 0],
    [0, 0, 1],
  ],
  protanopia: [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  deuteranopia: [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
  ],
  tritanopia: [
    [1.255528, -0.076749, -0.178779],
    [-0.078411, 0.930809, 0.147602],
    [0.004733, 0.691367, 0.3039],
  ],
};

/** A colour as an eye sees it, in Oklab, where equal distances look about equally different. */
function seen(hex: string, eye: number[][]): number[] {
  const linear = [1, 3, 5].map((at) => {
    const value = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const times = (rows: number[][], by: number[]) =>
    rows.map((row) => row.reduce((sum, value, at) => sum + value * (by[at] ?? 0), 0));
  const view = times(eye, linear).map((value) => Math.min(1, Math.max(0, value)));
  const cones = times(
    [
      [0.4122214708, 0.5363325363, 0.0514459929],
      [0.2119034982, 0.6806995451, 0.1073969566],
      [0.0883024619, 0.2817188376, 0.6299787005],
    ],
    view,
  ).map(Math.cbrt);
  return times(
    [
      [0.2104542553, 0.793617785, -0.0040720468],
      [1.9779984951, -2.428592205, 0.4505937099],
      [0.0259040371, 0.7827717662, -0.808675766],
    ],
    cones,
  );
}

test.each(["light", "dark"])("neighbouring topics differ for every eye: %s", (name) => {
  const colours = theme(name);
  for (const [eye, matrix] of Object.entries(EYES)) {
    for (const [at, topic] of TOPICS.entries()) {
      const next = TOPICS[(at + 1) % TOPICS.length] ?? "";
      const [a, b] = [topic, next].map((one) => seen(colours[one] ?? "", matrix));
      const apart = Math.hypot(...(a ?? []).map((value, part) => value - (b?.[part] ?? 0)));
      expect(apart, `${topic} beside ${next}, ${eye}`).toBeGreaterThan(0.12);
    }
  }
});

test("both themes have the same names", () => {
  expect(Object.keys(theme("dark")).sort()).toEqual(Object.keys(theme("light")).sort());
});
