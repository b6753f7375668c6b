/** The brain: a real model with experts thinks in it, and every shape of model is shown or explained. */
import type { Page } from "playwright-core";
import { afterEach, beforeAll, expect, test } from "vitest";
import { type Browser, type Looks, openBrowser } from "./browser";
import { expertServer, type RunningServer, shapedServer, think } from "./servers";

let real: RunningServer;
let large: RunningServer;
let dense: RunningServer;
let browser: Browser;
let page: Page;

beforeAll(async () => {
  [real, large, dense] = await Promise.all([
    expertServer(),
    shapedServer(76, 256),
    shapedServer(0, 0),
  ]);
  return () => Promise.all([real.stop(), large.stop(), dense.stop()]);
});

afterEach(() => browser.close());

async function open(url: string, looks: Looks = {}): Promise<void> {
  browser = await openBrowser(looks);
  page = browser.page;
  await page.goto(url);
}

const cortex = () => page.getByRole("application");
const details = () => page.getByRole("region", { name: "Expert", exact: true });

/** How many pixels of the cortex are almost white. */
const white = () =>
  cortex()
    .locator("canvas")
    .evaluate((element) => {
      const canvas = element as HTMLCanvasElement;
      const { data } = canvas.getContext("2d")?.getImageData(0, 0, canvas.width, canvas.height) ?? {
        data: [] as number[],
      };
      let pixels = 0;
      for (let at = 0; at < data.length; at += 4) if ((data[at] ?? 0) > 225) pixels++;
      return pixels;
    });

/** Frames that the page asks for within a second. */
async function frames(): Promise<number> {
  return page.evaluate(async () => {
    const original = window.requestAnimationFrame;
    let asked = 0;
    window.requestAnimationFrame = (callback) => {
      asked++;
      return original.call(window, callback);
    };
    await new Promise((done) => setTimeout(done, 1000));
    window.requestAnimationFrame = original;
    return asked;
  });
}

test("a real model thinks: its experts flash, and the turn's favourites are named", async () => {
  await open(`${real.url}/app/chat`);
  await page.getByRole("link", { name: "Open the brain" }).click();
  await page.getByRole("application", { name: "Cortex: 4 layers of 32 experts" }).waitFor();
  await page.getByText("Nothing was asked for yet.").first().waitFor();
  const stop = think(real);
  await expect.poll(white, { interval: 50, timeout: 20_000 }).toBeGreaterThan(0);
  await stop();
  await page.getByRole("radio", { name: "This turn" }).click();
  const wanted = page.getByRole("region", { name: "Most wanted in this turn" });
  await wanted.getByRole("button").first().click();
  const name = (await wanted.locator("span.grow").first().textContent()) ?? "";
  await details().getByText(name).waitFor();
  await details().getByText("coli atlas run").waitFor();
  const found = page.getByRole("region", { name: "Where experts were" });
  await found.getByRole("row", { name: "Always in memory" }).getByText("100 %").first().waitFor();
  // That there is no atlas yet is an answer.
  expect(browser.problems.filter((problem) => !/404/.test(problem))).toEqual([]);
});

test("keys go through the cells, which are told, linked to, and there after a reload", async () => {
  await open(`${large.url}/app/brain?layer=10&expert=20`);
  await details().getByText("Layer 10, expert 20").waitFor();
  await cortex().focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("PageDown");
  await details().getByText("Layer 21, expert 21").waitFor();
  await page
    .locator('[aria-live="polite"]')
    .getByText(/^Layer 21, expert 21, (RAM|Disk), heat/)
    .waitFor({ state: "attached" });
  await page.waitForURL(/layer=21&expert=21$/);
  await page.reload();
  await details().getByText("Layer 21, expert 21").waitFor();
  await cortex().focus();
  await page.keyboard.press("End");
  await details().getByText("Layer 21, expert 255").waitFor();
  await page.keyboard.press("Escape");
  await details().getByText("Point at a cell").waitFor();
  await page.goto(`${large.url}/app/brain?layer=2&expert=999`);
  await details().getByText("This model has no expert 999 in layer 2.").waitFor();
});

test("the pointer shows what it is on, and a click keeps it", async () => {
  await open(`${large.url}/app/brain`);
  const box = await cortex().boundingBox();
  if (!box) throw new Error("the cortex is not to be seen");
  // The middle of row 38 (layer 41) and of column 128.
  const at = { x: (box.width * 128.5) / 256, y: (box.height * 38.5) / 76 };
  await cortex().hover({ position: at });
  await cortex().getByText("Layer 41, expert 128").waitFor();
  await cortex().click({ position: at });
  await details().getByText("Layer 41, expert 128").waitFor();
});

test("the table says the same in figures, and can be sorted", async () => {
  await open(`${large.url}/app/brain`);
  await page.getByRole("radio", { name: "Table" }).click();
  await expect.poll(() => page.getByRole("row").count()).toBe(77);
  await page.getByRole("button", { name: "Layer 7", exact: true }).click();
  const heats = async () =>
    (await page.locator("tbody td:nth-child(3)").allInnerTexts()).map((text) =>
      Number.parseInt(text, 10),
    );
  await expect.poll(async () => (await heats()).length).toBe(256);
  const falling = await heats();
  expect(falling).toEqual([...falling].sort((a, b) => b - a));
  await page.getByRole("columnheader", { name: "Heat" }).getByRole("button").click();
  await expect.poll(async () => (await heats())[0]).toBe(falling.at(-1));
  await page.getByLabel("Layer").selectOption("All layers");
  await page.getByRole("button", { name: "Layer 78", exact: true }).waitFor();
});

test("there are frames while cells fade and none afterwards; without motion, hardly any", async () => {
  await open(`${large.url}/app/brain`);
  await cortex().waitFor();
  await expect.poll(frames, { timeout: 20_000 }).toBe(0);
  let stop = think(large);
  await expect.poll(white, { interval: 50, timeout: 20_000 }).toBeGreaterThan(100);
  expect(await frames()).toBeGreaterThan(5);
  await stop();
  await expect.poll(frames, { timeout: 20_000 }).toBe(0);
  expect(await white()).toBe(0);
  await browser.close();

  await open(`${large.url}/app/brain`, { still: true });
  await cortex().waitFor();
  stop = think(large);
  // What was asked for last is bright until the next picture, and that is all.
  await expect.poll(frames, { timeout: 20_000 }).toBeGreaterThan(0);
  expect(await frames()).toBeLessThan(5);
  await stop();
});

test("an atlas says what an expert is for", async () => {
  await open(`${large.url}/app/`);
  const atlas = {
    categories: ["law", "birds"],
    layer: [40, 40],
    expert: [200, 201],
    top: [0, 0],
    specialist: [true, false],
    entropy: [0.33, 1],
    affinity: [940, 60, 500, 500],
  };
  // Of the worker, too.
  await browser.context.route("**/api/atlas", (route) => route.fulfill({ json: atlas }));
  await page.goto(`${large.url}/app/brain?layer=40&expert=200`);
  await details().getByText("94 %").first().waitFor();
  await details().getByText("A specialist").waitFor();
  await cortex().focus();
  await page.keyboard.press("ArrowRight");
  await details().getByText("A generalist").waitFor();
  await page.keyboard.press("ArrowRight");
  await details().getByText("asked for too seldom").waitFor();
});

test("looking at one tier lets the others step back", async () => {
  await open(`${large.url}/app/brain`);
  const ram = page.getByRole("button", { name: /^RAM/ });
  await ram.click();
  expect(await ram.getAttribute("aria-pressed")).toBe("true");
  await ram.click();
  expect(await ram.getAttribute("aria-pressed")).toBe("false");
});

test("what has no brain is explained: a dense model, another server, no server of ours", async () => {
  await open(`${dense.url}/app/brain`);
  await page.getByText("fake-model is a dense model").waitFor();
  await page.goto(`${dense.url}/app/chat`);
  await page.getByRole("textbox", { name: "Message" }).waitFor();
  expect(await page.getByRole("link", { name: "Open the brain" }).count()).toBe(0);

  await page.goto(`${large.url}/app/chat`);
  await page.getByRole("link", { name: "Open the brain" }).waitFor();
  await page.evaluate(() =>
    localStorage.setItem("colibri.prefs", JSON.stringify({ base: "http://127.0.0.1:9/v1" })),
  );
  await page.goto(`${large.url}/app/brain`);
  await page.getByText("Chats go to another server at the moment.").waitFor();
  await page.route("**/api/session", (route) => route.fulfill({ status: 404, body: "" }));
  await page.reload();
  await page.getByText("This server does not tell where its experts are.").waitFor();
});
