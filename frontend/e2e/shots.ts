/**
 * What a page is judged by: axe finds nothing serious, nothing scrolls to the side that is not made
 * for it, and a screenshot is kept to look at.
 */
import { mkdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import type { Page } from "playwright-core";
import { expect } from "vitest";
import { sidewaysScrollers } from "./sideways";

const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const SHOTS = join(import.meta.dirname, "..", "..", "build", "screenshots");

export async function check(page: Page, name: string): Promise<void> {
  await mkdir(SHOTS, { recursive: true });
  await page.screenshot({ path: join(SHOTS, `${name}.png`) });
  // Not as a script tag: the page's security policy refuses those, as it should.
  await page.evaluate(await readFile(AXE, "utf8"));
  const found = await page.evaluate(async () => {
    const { axe } = window as unknown as {
      axe: {
        run(): Promise<{ violations: { id: string; impact: string; nodes: { html: string }[] }[] }>;
      };
    };
    const { violations } = await axe.run();
    return violations
      .filter(({ impact }) => impact === "serious" || impact === "critical")
      .map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
  });
  expect(found, name).toEqual([]);
  expect(await sidewaysScrollers(page), name).toEqual([]);
}

export const LOOKS = [360, 768, 1440].flatMap((width) =>
  (["light", "dark"] as const).map((theme) => ({ width, theme })),
);
