/** The pages Models and Server, clicked as a person would, against real engines and real files. */
import { execFileSync } from "node:child_process";
import { cp, mkdir, mkdtemp, rm, symlink, truncate, writeFile } from "node:fs/promises";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import type { Locator, Page } from "playwright-core";
import { afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { type Browser, openBrowser } from "./browser";
import { type RunningServer, realServer } from "./servers";
import { check, LOOKS } from "./shots";

const ROOT = join(import.meta.dirname, "..", "..");
// A busy machine may take its time.
const PATIENT = { timeout: 60_000 };
const STARTER = "smollm2-135m-instruct";
const data = process.env["XDG_DATA_HOME"] ?? join(homedir(), ".local", "share");

// The browser reports every refusal as an error: of a load while answers are given, of a chat without
// a model, and to tell how a model fits whose files were damaged.
const EXPECTED = [
  /status of 409 .*\/api\/models\/spare-glm\/fit$/,
  /status of 409 .*\/api\/models\/[^/]+\/load$/,
  /status of 503 .*\/v1\/chat\/completions$/,
];

let models: string;
let home: RunningServer;
let browser: Browser;
let page: Page;

beforeAll(async () => {
  models = await mkdtemp(join(tmpdir(), "colibri-e2e-models-"));
  const installed = process.env["COLIBRI_MODELS_DIR"] ?? join(data, "colibri", "models");
  await symlink(join(installed, STARTER), join(models, STARTER));
  const make =
    "import sys, pathlib; from tests.support import draftmodel as d; d.make(pathlib.Path(sys.argv[1]))";
  execFileSync(join(ROOT, ".venv", "bin", "python"), ["-c", make, join(models, "tiny-glm")], {
    cwd: ROOT,
  });
  await cp(join(models, "tiny-glm"), join(models, "spare-glm"), { recursive: true });
  await mkdir(join(models, "broken"));
  await writeFile(join(models, "broken", "config.json"), "{");
  home = await realServer({ COLIBRI_MODELS_DIR: models });
  return async () => {
    await home.stop();
    await rm(models, { recursive: true, force: true });
  };
});

beforeEach(async () => {
  browser = await openBrowser();
  page = browser.page;
});

afterEach(async () => {
  const problems = browser.problems.filter(
    (problem) => !EXPECTED.some((expected) => expected.test(problem)),
  );
  await browser.close();
  expect(problems).toEqual([]);
});

const card = (name: string): Locator => page.getByRole("listitem", { name, exact: true });
const button = (where: Locator | Page, name: string) =>
  where.getByRole("button", { name, exact: true });

async function loaded(name: string): Promise<void> {
  await card(name).getByText("loaded", { exact: true }).waitFor();
}

test("models are listed with what they are and how they fit; broken ones say why", async () => {
  await page.goto(`${home.url}/app/models`);
  await loaded(STARTER);
  await card(STARTER).getByText("fits in memory").waitFor();
  await card(STARTER).getByText("tokens/s").waitFor();
  await card("tiny-glm")
    .getByText(/[0-9]+ experts( \([0-9]+ in the draft layer\))? · (packed|as published)/)
    .waitFor();
  await card("broken").getByText("config.json").waitFor();
  expect(await button(card("broken"), "Load").isDisabled()).toBe(true);
  expect(await button(card(STARTER), "Delete").isDisabled()).toBe(true);
  await page.getByText(models, { exact: true }).first().waitFor();
  await page.getByText("coli convert").waitFor();
});

test("a model is loaded in place of another, unloaded, and loaded with options", async () => {
  await page.goto(`${home.url}/app/models`);
  await button(card("tiny-glm"), "Load").click();
  await loaded("tiny-glm");
  await button(card("tiny-glm"), "Unload").click();
  await page.getByText("No model is loaded. Load one below").waitFor();
  // The chat leads here.
  await page.goto(`${home.url}/app/chat`);
  await page.getByRole("textbox", { name: "Message" }).fill("hi");
  await page.keyboard.press("Enter");
  await button(page, "Go to the models").click();
  await button(card(STARTER), "Load with options").click();
  await page.getByLabel("Context (tokens)").fill("2048");
  await page.getByLabel("Context slots").fill("3");
  await button(page.getByRole("dialog"), "Load").click();
  await loaded(STARTER);
  const health = await (await fetch(`${home.url}/health`)).json();
  expect(health.model.context_length).toBe(2048);
  expect(health.scheduler.kv_slots).toBe(3);
});

test("running answers are waited for or ended, as the user says", async () => {
  await page.goto(`${home.url}/app/models`);
  await loaded(STARTER);
  const answer = fetch(`${home.url}/v1/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({
      prompt: "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
      temperature: 0,
      max_tokens: 1800,
      stream: true,
    }),
  }).then((response) => response.text());
  await expect
    .poll(async () => (await (await fetch(`${home.url}/health`)).json()).scheduler.active, PATIENT)
    .toBe(1);
  await button(card("tiny-glm"), "Load").click();
  await page.getByRole("heading", { name: "Answers are being given" }).waitFor();
  await button(page, "End them now").click();
  expect(await answer).toContain("model_changed");
  await loaded("tiny-glm");
});

test("a model is verified, and what is wrong with it is listed", async () => {
  await truncate(join(models, "spare-glm", "out-00000.safetensors"), 1000);
  await page.goto(`${home.url}/app/models`);
  await button(card("spare-glm"), "Verify: read every byte").click();
  await card("spare-glm")
    .getByText(/\d+ errors?/)
    .first()
    .waitFor();
  await button(card(STARTER), "Verify: read every byte").click();
  // A model that has been talked with has files beside it that name this: a warning, rightly.
  await card(STARTER)
    .getByText(/^(Verified: every byte.*|1 warning)$/)
    .waitFor();
});

test("deleting shows what would go, and then frees it", async () => {
  await page.goto(`${home.url}/app/models`);
  await button(card("spare-glm"), "Delete").click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText(join(models, "spare-glm")).waitFor();
  await dialog.getByText(/\d+ files \(/).waitFor();
  await button(dialog, "Delete for good").click();
  await page.getByText("spare-glm was deleted").waitFor();
  await expect.poll(() => card("spare-glm").count(), PATIENT).toBe(0);
});

test("the server tells where it is, and gives settings to copy", async () => {
  await page.goto(`${home.url}/app/server`);
  await page.getByText(`${home.url}/v1`, { exact: true }).waitFor();
  await page.getByText("this computer only").waitFor();
  await page.getByText("not set").waitFor();
  await page.getByRole("combobox", { name: "Program" }).selectOption("aider");
  await button(page, "Copy code").click();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  expect(copied).toContain(`OPENAI_API_BASE=${home.url}/v1`);
  expect(copied).toMatch(/aider --model openai\/\S+/);
});

test("requests appear as they run, with all figures in a drawer; the log follows", async () => {
  await page.goto(`${home.url}/app/server`);
  await fetch(`${home.url}/v1/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "User-Agent": "tester/1.0" },
    body: JSON.stringify({ messages: [{ role: "user", content: "Hi" }], max_tokens: 4 }),
  });
  const row = page.getByRole("row", { name: /tester\/1\.0/ }).first();
  await row.getByText("limit reached").waitFor();
  await row.getByRole("button").click();
  const drawer = page.getByRole("dialog");
  await drawer.getByText("Generated tokens").waitFor();
  await drawer.getByText("tester/1.0").waitFor();
  await page.keyboard.press("Escape");
  const log = page.getByRole("log");
  await log.getByText("POST /v1/chat/completions").first().waitFor();
  await page.getByLabel("Search the log").fill("no such words");
  await log.getByText("No line has these words.").waitFor();
  await page.getByLabel("Search the log").fill("chat/completions");
  await button(page, "Copy these lines").click();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toContain("INFO");
  await page.getByRole("radio", { name: "Errors" }).click();
  await log.getByText("No line has these words.").waitFor();
});

test("the first steps lead from the computer to a model that says hello", async () => {
  await page.goto(`${home.url}/app/welcome`);
  await page
    .getByRole("region", { name: "This computer" })
    .getByText(/\d+ cores?/)
    .waitFor();
  const choice = page.getByRole("region", { name: "A model that fits" });
  const row = (name: string) => choice.getByRole("listitem").filter({ hasText: name });
  // What cannot be used is not offered.
  await row("tiny-glm").getByText("fits in memory").waitFor();
  expect(await row("broken").count()).toBe(0);
  const unloaded = await fetch(`${home.url}/api/models/unload`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ when: "now" }),
  });
  expect(unloaded.status).toBe(202);
  await page.getByText("A model has to be loaded first.").waitFor();
  expect(await button(page, "Say hello").isDisabled()).toBe(true);
  await button(row(STARTER), "Use this one").click();
  await row(STARTER).getByText("Ready").waitFor();
  await button(page, "Say hello").click();
  await page.waitForURL(/\/chat\/./);
  await page.locator('article[data-role="assistant"]').last().getByText("tok/s").waitFor();
});

test.each(LOOKS)("they look right at $width px, $theme", async ({ width, theme }) => {
  const looks = await openBrowser({ width, height: width < 500 ? 3400 : 2000, theme });
  try {
    for (const [path, name, ready] of [
      ["models", "models", "tokens/s"],
      ["server", "server", "POST /v1"],
      ["welcome", "first-steps", "tokens per second"],
    ] as const) {
      await looks.page.goto(`${home.url}/app/${path}`);
      await looks.page.locator("#main").getByText(ready).first().waitFor();
      await check(looks.page, `${name}-${width}-${theme}`);
    }
  } finally {
    await looks.close();
  }
});
