/** Fingers on the pictures of a large model, on a phone: tap, drag, pinch. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { CDPSession, Page } from "playwright-core";
import { afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { madeUpFile } from "../src/core/atlas.made";
import { type Browser, openBrowser } from "./browser";
import { type RunningServer, shapedServer, think } from "./servers";

let large: RunningServer;
let browser: Browser;
let page: Page;
let session: CDPSession;

beforeAll(async () => {
  const folder = await mkdtemp(join(tmpdir(), "colibri-e2e-touch-"));
  const path = join(folder, "experts.json");
  await writeFile(path, JSON.stringify(madeUpFile(8, 20, 64)));
  large = await shapedServer(20, 64, { atlas: path });
  return async () => {
    await large.stop();
    await rm(folder, { recursive: true, force: true });
  };
});

beforeEach(async () => {
  browser = await openBrowser({ width: 360, height: 740, touch: true, still: true, webgl: true });
  page = browser.page;
  session = await page.context().newCDPSession(page);
});

afterEach(async () => {
  const { problems } = browser;
  await browser.close();
  expect(problems).toEqual([]);
});

interface Spot {
  x: number;
  y: number;
}

/** Puts fingers down, moves them along their paths in steps, and lifts them, one after the other. */
async function fingers(...paths: readonly (readonly [from: Spot, to: Spot])[]): Promise<void> {
  const STEPS = 8;
  const at = (part: number) =>
    paths.map(([from, to], id) => ({
      id,
      x: from.x + (to.x - from.x) * part,
      y: from.y + (to.y - from.y) * part,
    }));
  const send = (type: "touchStart" | "touchMove" | "touchEnd", touchPoints: Spot[]) =>
    session.send("Input.dispatchTouchEvent", { type, touchPoints });
  await send("touchStart", at(0));
  for (let step = 1; step <= STEPS; step++) await send("touchMove", at(step / STEPS));
  await send("touchEnd", []);
}

const galaxy = () => page.getByRole("application", { name: "Galaxy of experts" });
const card = () => galaxy().getByRole("link", { name: "Show in the Brain" });

/** Opens the atlas with one expert selected; where its ring stands in the window. */
async function selected(expert: string): Promise<() => Promise<Spot>> {
  await page.goto(`${large.url}/app/atlas`);
  await galaxy().locator('[aria-busy="false"]').waitFor();
  await page.getByRole("searchbox", { name: "Search experts" }).fill(expert);
  await page.getByRole("status").getByText("1 of 1,280 experts").waitFor();
  await galaxy().focus();
  await page.keyboard.press("PageDown");
  await card().waitFor();
  return async () => {
    const box = await page.getByTestId("ring").boundingBox();
    if (!box) throw new Error("no ring");
    return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
  };
}

async function middle(): Promise<Spot> {
  const box = await galaxy().boundingBox();
  if (!box) throw new Error("no galaxy");
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
}

const away = (a: Spot, b: Spot) => Math.hypot(a.x - b.x, a.y - b.y);

test("a tap takes an expert of the galaxy, and its card leads to the brain", async () => {
  const ring = await selected("7:20");
  const { x, y } = await ring();
  await page.keyboard.press("Escape");
  await card().waitFor({ state: "detached" });
  // A finger is not as exact as a mouse.
  await page.touchscreen.tap(x + 6, y - 6);
  await galaxy().getByText("Layer 7 · Expert 20").waitFor();
  expect(page.url()).toContain("/atlas");
  await card().tap();
  await page.waitForURL(/brain\?layer=7&expert=20$/);
  await page.getByText("Layer 7, expert 20").first().waitFor();
});

test("a finger spins the galaxy, two come nearer, and neither lets go of the expert", async () => {
  const ring = await selected("22:5");
  const centre = await middle();
  const before = await ring();
  // Below the card.
  const y = centre.y + 240;
  await fingers([
    { x: 60, y },
    { x: 140, y },
  ]);
  await expect.poll(async () => away(await ring(), before)).toBeGreaterThan(10);
  const spun = away(await ring(), centre);
  await fingers(
    [
      { x: 140, y },
      { x: 90, y },
    ],
    [
      { x: 220, y },
      { x: 270, y },
    ],
  );
  await expect.poll(async () => away(await ring(), centre)).toBeGreaterThan(spun * 1.5);
  const near = away(await ring(), centre);
  // The picture is enlarged, not the page.
  expect(await page.evaluate(() => visualViewport?.scale)).toBe(1);
  await fingers(
    [
      { x: 90, y },
      { x: 140, y },
    ],
    [
      { x: 270, y },
      { x: 220, y },
    ],
  );
  await expect.poll(async () => away(await ring(), centre)).toBeLessThan(near / 1.5);
  // A finger that lies still while the other one moves does not tap, though it is lifted last.
  await fingers(
    [
      { x: 200, y },
      { x: 290, y },
    ],
    [
      { x: 80, y },
      { x: 80, y },
    ],
  );
  await page.waitForTimeout(200);
  await galaxy().getByText("Layer 22 · Expert 5").waitFor();
  await card().waitFor();
});

const cortex = () => page.getByRole("application", { name: /^Cortex/ });
const details = () => page.getByRole("region", { name: "Expert", exact: true });

/** The middle of a cell, in the window. */
async function cell(row: number, col: number): Promise<Spot> {
  const box = await cortex().boundingBox();
  if (!box) throw new Error("no cortex");
  // On a phone the layers go from left to right.
  const turned = box.height > box.width;
  const [across, down] = turned ? [20, 64] : [64, 20];
  const [x, y] = turned ? [row, col] : [col, row];
  return {
    x: box.x + ((x + 0.5) * box.width) / across,
    y: box.y + ((y + 0.5) * box.height) / down,
  };
}

test("a tap takes a cell of the brain; a finger that moves scrolls past it", async () => {
  await page.goto(`${large.url}/app/brain`);
  await cortex().waitFor();
  const spot = await cell(8, 30);
  await page.touchscreen.tap(spot.x, spot.y);
  await details().getByText("Layer 11, expert 30").waitFor();
  const top = (await cortex().boundingBox())?.y ?? 0;
  await fingers([spot, { x: spot.x, y: spot.y - 120 }]);
  await expect.poll(async () => (await cortex().boundingBox())?.y).toBeLessThan(top - 50);
  await details().getByText("Layer 11, expert 30").waitFor();
});

test("two fingers enlarge the brain, and a tap takes the cell that is under it then", async () => {
  await page.goto(`${large.url}/app/brain`);
  await cortex().waitFor();
  const { x, y } = await cell(10, 32);
  await fingers(
    [
      { x: x - 20, y },
      { x: x - 100, y },
    ],
    [
      { x: x + 20, y },
      { x: x + 100, y },
    ],
  );
  const seen = () =>
    page.evaluate(() => {
      const { scale, offsetLeft, offsetTop } = visualViewport as VisualViewport;
      return [scale, offsetLeft, offsetTop];
    });
  // Until it has begun, and stands still.
  await expect.poll(async () => (await seen())[0]).toBeGreaterThan(1);
  let last: number[] = [];
  for (let now = await seen(); `${now}` !== `${last}`; now = await seen()) {
    last = now;
    await page.waitForTimeout(300);
  }
  const [scale = 1] = last;
  expect(scale).toBeGreaterThan(1.5);
  const spot = await cell(10, 34);
  await page.touchscreen.tap(spot.x, spot.y);
  await details().getByText("Layer 13, expert 34").waitFor();
});

test("a tap on the small brain of the chat opens the large one", async () => {
  await page.goto(`${large.url}/app/chat`);
  const stop = think(large);
  await page.getByRole("link", { name: "Open the brain" }).tap();
  await cortex().waitFor();
  await stop();
});
