/** The atlas: a real server with a measured model, drawn, spun, filtered, read, and missing. */
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Page, Worker } from "playwright-core";
import { afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { madeUpFile } from "../src/core/atlas.made";
import { type Browser, type Looks, openBrowser } from "./browser";
import { type ExpertServer, expertServer } from "./servers";
import { check, LOOKS } from "./shots";

let home: ExpertServer;
let browser: Browser;
let page: Page;
// The model's layers 1 to 4 have 32 experts each; the layer 0 is dense.
const FILE = madeUpFile(8, 4, 32, 1);

beforeAll(async () => {
  home = await expertServer();
  return home.stop;
});

beforeEach(() => writeFile(join(home.folder, "experts.json"), JSON.stringify(FILE)));
afterEach(() => browser.close());

/** Who draws: a worker, or the page itself where a browser cannot do that. */
let draughtsman: Promise<Pick<Worker, "evaluate">>;

async function open(looks: Looks = {}, { here = false } = {}): Promise<void> {
  browser = await openBrowser({ still: true, webgl: true, ...looks });
  page = browser.page;
  if (here) {
    draughtsman = Promise.resolve(page as Pick<Worker, "evaluate">);
    await page.addInitScript(() =>
      Reflect.deleteProperty(HTMLCanvasElement.prototype, "transferControlToOffscreen"),
    );
    await page.addInitScript(countDraws);
  } else {
    draughtsman = new Promise((done) => {
      page.on("worker", async (worker) => {
        if (!worker.url().includes("drawing")) return;
        // A test may end before the worker has begun.
        const counts = await worker.evaluate(countDraws).then(
          () => true,
          () => false,
        );
        if (counts) done(worker);
      });
    });
  }
  await page.goto(`${home.url}/app/atlas`);
}

/** Counts every call to the graphics card that draws, and keeps what it was made with. */
function countDraws(): void {
  const counted = globalThis as unknown as { draws: number; context: WebGL2RenderingContext };
  counted.draws = 0;
  const { drawArrays } = WebGL2RenderingContext.prototype;
  WebGL2RenderingContext.prototype.drawArrays = function (...values) {
    counted.draws++;
    counted.context = this;
    drawArrays.apply(this, values);
  };
}

const galaxy = () => page.getByRole("application", { name: "Galaxy of experts" });
const draws = async () =>
  (await draughtsman).evaluate(() => (globalThis as unknown as { draws: number }).draws);
const shown = (text: string) => page.getByRole("status").getByText(text).waitFor();
const label = (name: string) => galaxy().locator("span", { hasText: name }).first();

async function drawn(): Promise<void> {
  await galaxy().locator('[aria-busy="false"]').waitFor();
  await label("cooking").waitFor();
}

/** Until nothing is drawn for half a second. */
async function rest(): Promise<number> {
  let last = -1;
  for (let now = await draws(); now !== last; now = await draws()) {
    last = now;
    await new Promise((done) => setTimeout(done, 500));
  }
  return last;
}

/** Different colours in the picture; an empty one has a handful. */
async function colours(): Promise<number> {
  const shot = (await galaxy().screenshot()).toString("base64");
  return page.evaluate(async (data) => {
    const image = new Image();
    image.src = `data:image/png;base64,${data}`;
    await image.decode();
    const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
    context?.drawImage(image, 0, 0);
    const pixels = context?.getImageData(0, 0, image.width, image.height).data;
    return new Set(pixels && new Uint32Array(pixels.buffer)).size;
  }, shot);
}

test("every expert is drawn in one call, and a page at rest draws nothing", async () => {
  await open();
  await drawn();
  await shown("128 of 128 experts");
  const before = await rest();
  await new Promise((done) => setTimeout(done, 1000));
  expect(await draws()).toBe(before);
  // Without motion a key is one frame, and a frame is one call.
  await galaxy().focus();
  await page.keyboard.press("ArrowRight");
  await expect.poll(draws).toBe(before + 1);
  expect(browser.problems).toEqual([]);
});

test("drag, wheel and keys move the picture, and it can be reset", async () => {
  await open();
  await drawn();
  await rest();
  const place = () =>
    galaxy()
      .locator("span[style*=transform]")
      .evaluateAll((labels) =>
        labels
          .map((element) => (element as HTMLElement).style)
          .map(({ transform, visibility }) => (visibility === "visible" ? transform : ""))
          .join(),
      );
  const first = await place();
  const box = await galaxy().boundingBox();
  if (!box) throw new Error("no galaxy");
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
  await page.mouse.move(x, y);
  await page.mouse.down();
  await page.mouse.move(x + 80, y + 10, { steps: 4 });
  await page.mouse.up();
  await expect.poll(place).not.toBe(first);
  // A drag is no click.
  expect(page.url()).toContain("/atlas");
  const spun = await place();
  await page.mouse.wheel(0, -120);
  await expect.poll(place).not.toBe(spun);
  await galaxy().focus();
  await page.keyboard.press("-");
  await page.getByRole("button", { name: "Reset the view" }).click();
  await expect.poll(place).toBe(first);
});

test("an expert is found by its number, told, and opened in the brain", async () => {
  await open();
  await drawn();
  await page.getByRole("searchbox", { name: "Search experts" }).fill("2:7");
  await shown("1 of 128 experts");
  await galaxy().focus();
  await page.keyboard.press("PageDown");
  const name = "Layer 2 · Expert 7";
  await galaxy().getByText(name).waitFor();
  await page.locator("[aria-live]").getByText(name).waitFor();
  const link = galaxy().getByRole("link", { name: "Show in the Brain" });
  expect(await link.getAttribute("href")).toBe("/app/brain?layer=2&expert=7");
  await page.keyboard.press("Escape");
  await link.waitFor({ state: "detached" });
  await page.keyboard.press("PageDown");
  await page.keyboard.press("Enter");
  await expect.poll(() => page.url()).not.toContain("/atlas");
  // Back: what was looked for is still there.
  await page.goBack();
  await shown("1 of 128 experts");
});

test("the pointer is told what it is on; a click goes to the brain", async () => {
  await open();
  await drawn();
  await page.getByRole("searchbox", { name: "Search experts" }).fill("3:20");
  await shown("1 of 128 experts");
  await galaxy().focus();
  await page.keyboard.press("PageDown");
  await galaxy().getByText("Layer 3 · Expert 20").waitFor();
  const ring = await page.getByTestId("ring").boundingBox();
  if (!ring) throw new Error("no ring");
  await page.keyboard.press("Escape");
  await page.mouse.move(ring.x + 10, ring.y + 9);
  await galaxy().getByText("Click: show in the Brain").waitFor();
  const leads = page.waitForRequest(/./).catch(() => null);
  await page.mouse.click(ring.x + 10, ring.y + 9);
  await expect.poll(() => page.url()).toMatch(/\/(brain\?layer=3&expert=20|chat)$/);
  await leads;
});

test("topics and kinds filter, with counts that agree", async () => {
  await open();
  await drawn();
  const legend = page.getByRole("complementary", { name: "Topics" });
  const button = legend.getByRole("button", { name: /^cooking/ });
  const number = (await button.textContent())?.replace(/\D/g, "") ?? "";
  expect(Number(number)).toBeGreaterThan(3);
  await button.click();
  await shown(`${number} of 128 experts`);
  await legend.getByRole("radio", { name: "Generalists" }).click();
  const general = (await button.textContent())?.replace(/\D/g, "") ?? "";
  await shown(`${general} of 128 experts`);
  await legend.getByRole("button", { name: "All topics" }).click();
  await legend.getByRole("radio", { name: "All", exact: true }).click();
  await shown("128 of 128 experts");
  await page.getByRole("searchbox", { name: "Search experts" }).fill("no such topic");
  await shown("0 of 128 experts");
});

const isFalling = (values: number[]): boolean =>
  values.every((value, at) => at === 0 || value <= (values[at - 1] ?? 0));

test("the table has the same experts, sorted by keys", async () => {
  await open();
  await page.getByRole("radio", { name: "Table" }).click();
  await page.getByRole("button", { name: "Share" }).focus();
  await page.keyboard.press("Enter");
  const header = page.getByRole("columnheader", { name: "Share" });
  expect(await header.getAttribute("aria-sort")).toBe("descending");
  const cells = page.locator("tbody td:nth-child(3)");
  const shares = async () =>
    (await cells.allTextContents()).map((text) => Number.parseInt(text, 10));
  // The rows follow a moment after the header.
  await expect.poll(async () => isFalling(await shares())).toBe(true);
  expect(await shares()).toHaveLength(50);
  await page.getByRole("button", { name: "Next page" }).click();
  await page.getByText("51 to 100 of 128").waitFor();
  await page.getByRole("rowheader").first().getByRole("button").click();
  await galaxy().getByRole("link", { name: "Show in the Brain" }).waitFor();
});

test("without an atlas the commands are shown and can be copied; then it is found", async () => {
  await rm(join(home.folder, "experts.json"));
  await open();
  await page.getByRole("heading", { name: "No atlas yet" }).waitFor();
  const copy = page.getByRole("button", { name: /^Copy: coli atlas run/ });
  await copy.click();
  await page.getByRole("button", { name: "Copied" }).waitFor();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toContain(home.folder);
  await check(page, "atlas-missing");
  await writeFile(join(home.folder, "experts.json"), JSON.stringify(FILE));
  await page.getByRole("button", { name: "Look again" }).click();
  await shown("128 of 128 experts");
});

test("a damaged atlas is named, not drawn", async () => {
  await writeFile(join(home.folder, "experts.json"), '{"categories": ["code"]');
  await open();
  await page.getByRole("heading", { name: "The atlas cannot be used" }).waitFor();
  await page.locator("#main").getByText("experts.json").waitFor();
});

test("without WebGL the table is shown, and says why", async () => {
  await open({ webgl: false });
  await page.getByText("cannot draw in three dimensions").waitFor();
  await expect.poll(() => page.getByRole("row").count()).toBe(51);
  expect(await page.getByRole("radio", { name: "Galaxy" }).count()).toBe(0);
});

test("the page itself never waits for the graphics card", async () => {
  browser = await openBrowser({ still: true, webgl: true });
  page = browser.page;
  await page.addInitScript(() => {
    const asked: string[] = [];
    Object.assign(window, { asked });
    const { getContext } = HTMLCanvasElement.prototype;
    HTMLCanvasElement.prototype.getContext = function (this: HTMLCanvasElement, kind: string) {
      asked.push(kind);
      return getContext.call(this, kind) as never;
    };
  });
  await page.goto(`${home.url}/app/atlas`);
  await drawn();
  const asked = await page.evaluate(() => (window as unknown as { asked: string[] }).asked);
  expect(asked.filter((kind) => kind.includes("webgl"))).toEqual([]);
});

test("where a browser has no canvas for workers the page draws by itself", async () => {
  await open({}, { here: true });
  await drawn();
  expect(page.workers().filter((worker) => worker.url().includes("drawing"))).toEqual([]);
  expect(await colours()).toBeGreaterThan(300);
  const before = await rest();
  await galaxy().focus();
  await page.keyboard.press("ArrowRight");
  await expect.poll(draws).toBe(before + 1);
  expect(browser.problems).toEqual([]);
});

test("a picture that the graphics card takes away comes back; leaving gives the card back", async () => {
  await open();
  await drawn();
  const before = await rest();
  await galaxy().focus();
  await page.keyboard.press("ArrowRight");
  await expect.poll(draws).toBeGreaterThan(before);
  const worker = await draughtsman;
  await worker.evaluate(() => {
    const kept = globalThis as unknown as {
      context: WebGL2RenderingContext;
      card: WEBGL_lose_context | null;
    };
    kept.card = kept.context.getExtension("WEBGL_lose_context");
    kept.card?.loseContext();
  });
  await page.getByRole("alert").getByText("taken the picture away").waitFor();
  const lost = await draws();
  await worker.evaluate(() =>
    (globalThis as unknown as { card: WEBGL_lose_context }).card.restoreContext(),
  );
  await page.getByRole("alert").waitFor({ state: "detached" });
  await expect.poll(draws).toBeGreaterThan(lost);
  expect(await colours()).toBeGreaterThan(300);
  await page.getByRole("link", { name: "Settings" }).click();
  await expect.poll(() => page.workers().length).toBe(0);
});

test.each(LOOKS)("$width px, $theme: painted, and nothing stands in the way", async (looks) => {
  await open({ ...looks, height: looks.width < 500 ? 740 : 900, touch: looks.width < 500 });
  const fits = async (name: string) => {
    await check(page, `atlas-${name}-${looks.width}-${looks.theme}`);
  };
  await drawn();
  expect(await colours()).toBeGreaterThan(300);
  await galaxy().focus();
  await page.keyboard.press("PageDown");
  await galaxy().getByRole("link", { name: "Show in the Brain" }).waitFor();
  await fits("galaxy");
  if (looks.width < 768) {
    await page.getByRole("button", { name: "Topics" }).click();
    await page.getByRole("dialog").getByText("How to read it").waitFor();
    await fits("topics");
    await page.keyboard.press("Escape");
  }
  await page.getByRole("radio", { name: "Table" }).click();
  await page.getByRole("table").waitFor();
  await fits("table");
  expect(browser.problems).toEqual([]);
});
