/** Our own server over a scripted engine, for what takes a real one too long: keys, slow prompts. */
import { afterEach, beforeAll, expect, test } from "vitest";
import { type Browser, openBrowser } from "./browser";
import { type RunningServer, shapedServer } from "./servers";

let locked: RunningServer;
let slow: RunningServer;
let browser: Browser;

beforeAll(async () => {
  [locked, slow] = await Promise.all([
    shapedServer(0, 0, { api_key: "a long key" }),
    // Its tokens are bytes: some seconds for a question.
    shapedServer(0, 0, {
      script: { pieces: ["Read", " it."], repeat: false, token_ms: 20, prefill_ms_per_token: 40 },
    }),
  ]);
  return () => Promise.all([locked.stop(), slow.stop()]);
});

afterEach(() => browser.close());

test("a server with a key asks for it once, and forgets it when asked to", async () => {
  browser = await openBrowser();
  const { page } = browser;
  await page.goto(`${locked.url}/app/`);
  await page.getByLabel("API key").fill("another one");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").getByText("This is not the key.").waitFor();
  await page.getByLabel("API key").fill("a long key");
  await page.keyboard.press("Enter");
  await page.getByRole("textbox", { name: "Message" }).waitFor();
  await page.reload();
  await page.getByRole("textbox", { name: "Message" }).waitFor();
  expect(page.url()).not.toContain("key");
  expect(await page.evaluate(() => document.cookie)).toBe("");
  await page.goto(`${locked.url}/app/settings`);
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("API key").waitFor();
  // A login that has ended elsewhere leads back here as well.
  await page.getByLabel("API key").fill("a long key");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Log out" }).waitFor();
  await page.context().clearCookies();
  await page.goto(`${locked.url}/app/chat`);
  await page.getByLabel("API key").waitFor();
});

test("a long prompt shows how far it is read, and the next one is estimated before", async () => {
  browser = await openBrowser();
  const { page } = browser;
  await page.goto(`${slow.url}/app/`);
  const field = page.getByRole("textbox", { name: "Message" });
  await field.fill("a question of some length, so that there is something to be read ".repeat(2));
  await page.keyboard.press("Enter");
  const progress = page.getByRole("progressbar", { name: "Reading the prompt…" });
  await progress.waitFor();
  await page.getByText(/Reading the prompt: [\d,]+ of [\d,]+ tokens/).waitFor();
  await expect
    .poll(async () => Number(await progress.getAttribute("aria-valuenow")), { timeout: 10_000 })
    .toBeGreaterThan(20);
  await page.getByText("Read it.").first().waitFor({ timeout: 60_000 });
  await page.getByRole("button", { name: "Send" }).waitFor();
  // What was measured says how long the next one will take, before it is sent.
  await field.fill("and now for something much longer ".repeat(200));
  await page.getByText(/About .+ until the first word/).waitFor();
  await page.getByText(/[\d,]+ new tokens, [\d,]+ known already\./).waitFor();
  await field.fill("short");
  await expect.poll(() => page.getByText(/until the first word/).count()).toBe(0);
  await field.fill("far too long for it ".repeat(2_000));
  await page.getByText(/longer than the context of 32,768/).waitFor();
});
