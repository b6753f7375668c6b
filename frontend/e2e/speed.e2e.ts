/**
 * A chat of 500 messages stays responsive while an answer streams at 100 tokens a second, the brain of
 * a large model moves smoothly, and its atlas never keeps the page from answering. What is asserted leaves room for a machine that does ten other
 * things; the figures are printed.
 */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Page } from "playwright-core";
import { beforeAll, expect, test } from "vitest";
import { madeUpFile } from "../src/core/atlas.made";
import { openBrowser } from "./browser";
import {
  type RunningServer,
  realServer,
  type ScriptedServer,
  scriptedServer,
  shapedServer,
  spelled,
  think,
} from "./servers";
import { type Task, trace } from "./trace";

let home: RunningServer;
let other: ScriptedServer;

beforeAll(async () => {
  [home, other] = await Promise.all([realServer(), scriptedServer()]);
  return async () => {
    await home.stop();
    await other.stop();
  };
});

const WORDS =
  "Some **words** of an answer with `code`, a list:\n\n- one\n- two\n\n```python\nprint('hello')\n```\n\nand an end. ";

function longChat() {
  const messages = Array.from({ length: 500 }, (_, at) => ({
    id: `m${at}`,
    parent: at === 0 ? null : `m${at - 1}`,
    role: at % 2 === 0 ? "user" : "assistant",
    parts: [{ type: "text", text: at % 2 === 0 ? `Question ${at}?` : WORDS.repeat(2) }],
    meta: { finish: "stop" },
  }));
  const chat = { id: "long", title: "Long", active: "m499", messages };
  return { format: "colibri-chats", version: 1, chats: [chat] };
}

test("a key press is on the screen within 50 ms", async () => {
  const made = await fetch(`${home.url}/api/chats/import`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(longChat()),
  });
  expect(made.status).toBe(201);
  other.script({ deltas: spelled(WORDS.repeat(30), 4), everyMs: 10 });
  const { page, close } = await openBrowser();
  try {
    await page.addInitScript((base) => {
      localStorage.setItem("colibri.prefs", JSON.stringify({ base }));
    }, other.url);
    await page.goto(`${home.url}/app/chat/long`);
    await page.getByText("Question 498?").waitFor();
    const field = page.getByRole("textbox", { name: "Message" });
    await field.fill("go");
    await page.keyboard.press("Enter");
    await page.locator('article[data-role="assistant"]').last().getByText("tok/s").waitFor();
    // From the event to the frame after it, as the browser measures it.
    await page.evaluate(() => {
      const store = window as unknown as { latencies: number[] };
      store.latencies = [];
      addEventListener("keydown", () => {
        const pressed = performance.now();
        requestAnimationFrame(() =>
          setTimeout(() => store.latencies.push(performance.now() - pressed)),
        );
      });
    });
    await field.focus();
    for (let at = 0; at < 60; at++) await page.keyboard.press("a", { delay: 15 });
    const latencies = await page.evaluate(
      () => (window as unknown as { latencies: number[] }).latencies,
    );
    const sorted = latencies.sort((a, b) => a - b);
    const median = sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
    const most = sorted.at(-1) ?? Number.NaN;
    process.stdout.write(
      `speed: ${sorted.length} keys, median ${median.toFixed(1)} ms, longest ${most.toFixed(1)} ms\n`,
    );
    // The aim is 50 ms.
    expect(median).toBeLessThan(500);
    expect(await field.inputValue()).toBe("a".repeat(60));
  } finally {
    await close();
  }
});

const MEASURED_MS = 5000;

/** Milliseconds from one frame to the next, for a while. */
const intervals = (page: Page) =>
  page.evaluate(
    (time) =>
      new Promise<number[]>((done) => {
        const found: number[] = [];
        let last = performance.now();
        const end = last + time;
        const step = (now: number) => {
          found.push(now - last);
          last = now;
          if (now < end) requestAnimationFrame(step);
          else done(found.slice(1));
        };
        requestAnimationFrame(step);
      }),
    MEASURED_MS,
  );

/** Share of a core that each kind of thread of the page's process takes, from a trace. */
async function threads(page: Page): Promise<Record<string, number>> {
  const end = await trace(page);
  await page.waitForTimeout(MEASURED_MS);
  const { tasks, wall } = await end();
  return Object.fromEntries(
    [...tasks].map(([thread, list]) => [
      thread,
      list.reduce((sum, { cpu }) => sum + cpu, 0) / wall,
    ]),
  );
}

test("a brain of 76 x 256 experts with ten updates a second is smooth", async () => {
  const large = await shapedServer(76, 256);
  const { page, close } = await openBrowser();
  const stop = think(large);
  try {
    await page.goto(`${large.url}/app/brain`);
    await page.getByRole("application").waitFor();
    await page.waitForTimeout(1000);
    const sorted = (await intervals(page)).sort((a, b) => a - b);
    const median = sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
    const shares = await threads(page);
    const main = shares["CrRendererMain"] ?? Number.NaN;
    const told = Object.entries(shares)
      .filter(([, share]) => share > 0.005)
      .map(([name, share]) => `${name} ${(share * 100).toFixed(1)} %`);
    process.stdout.write(
      `speed: brain, ${sorted.length} frames, median interval ${median.toFixed(1)} ms; ${told.join(", ")}\n`,
    );
    // The aims are 17 ms and 30 % of a core for script and paint, the main thread's work.
    expect(median).toBeLessThan(200);
    expect(main).toBeGreaterThan(0);
    expect(main).toBeLessThan(0.6);
  } finally {
    await stop();
    await close();
    await large.stop();
  }
});

test("an atlas of 19,456 experts has no long task", async () => {
  const folder = await mkdtemp(join(tmpdir(), "colibri-e2e-atlas-"));
  const path = join(folder, "experts.json");
  await writeFile(path, JSON.stringify(madeUpFile(12, 76, 256)));
  const large = await shapedServer(76, 256, { atlas: path });
  const { page, problems, close } = await openBrowser({ webgl: true });
  const galaxy = page.getByRole("application", { name: "Galaxy of experts" });
  const legend = page.getByRole("complementary", { name: "Topics" });
  const search = page.getByRole("searchbox", { name: "Search experts" });
  const longest: Record<string, { cpu: number; wall: number }> = {};
  const most = (tasks: Task[], of: keyof Task) => Math.max(0, ...tasks.map((task) => task[of]));
  /** The longest tasks of the page's thread while something is done, until it has settled. */
  async function during(what: string, act: () => Promise<unknown>): Promise<void> {
    const end = await trace(page);
    await act();
    await page.waitForTimeout(1000);
    const main = (await end()).tasks.get("CrRendererMain") ?? [];
    expect(main.length, what).toBeGreaterThan(0);
    longest[what] = { cpu: most(main, "cpu"), wall: most(main, "wall") };
  }
  try {
    page.setDefaultTimeout(120_000);
    await page.goto(`${large.url}/app/settings`);
    await page.getByLabel("Base URL").waitFor();
    await during("open", async () => {
      await page.getByRole("link", { name: "Atlas" }).click();
      await galaxy.locator('[aria-busy="false"]').waitFor();
    });
    const box = await galaxy.boundingBox();
    if (!box) throw new Error("no galaxy");
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    await during("drag", async () => {
      await page.mouse.move(x, y);
      await page.mouse.down();
      await page.mouse.move(x + 160, y + 40, { steps: 20 });
      await page.mouse.up();
    });
    await during("hover", () => page.mouse.move(x - 160, y - 40, { steps: 30 }));
    await during("search", () => search.pressSequentially("co 12", { delay: 60 }));
    await search.fill("");
    await during("filter", () => legend.getByRole("button", { name: /^cooking/ }).click());
    await during("select", async () => {
      await galaxy.focus();
      await page.keyboard.press("PageDown");
      await galaxy.getByRole("link", { name: "Show in the Brain" }).waitFor();
    });
    await during("table", () => page.getByRole("radio", { name: "Table" }).click());
    await during("sort", () => page.getByRole("button", { name: "Share" }).click());
    await during("load", async () => {
      await page.goto(`${large.url}/app/atlas`);
      await galaxy.locator('[aria-busy="false"]').waitFor();
    });
    const told = Object.entries(longest).map(
      ([what, { cpu, wall }]) => `${what} ${cpu.toFixed(0)} (${wall.toFixed(0)})`,
    );
    process.stdout.write(
      `speed: atlas, longest task of the page in ms of the processor (of the clock): ${told.join(", ")}\n`,
    );
    expect(problems).toEqual([]);
    // The aim is 50 ms; a machine that does ten other things takes longer for the same.
    for (const [what, { cpu }] of Object.entries(longest)) expect(cpu, what).toBeLessThan(200);
  } finally {
    await close();
    await large.stop();
    await rm(folder, { recursive: true, force: true });
  }
});
