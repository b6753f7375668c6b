/** The chat with a real model, as a person uses it. */
import { readFile } from "node:fs/promises";
import type { Page } from "playwright-core";
import { beforeAll, expect, test } from "vitest";
import { type Browser, openBrowser } from "./browser";
import { type RunningServer, realServer } from "./servers";

let home: RunningServer;
let browser: Browser;
let page: Page;

beforeAll(async () => {
  home = await realServer();
  browser = await openBrowser();
  page = browser.page;
  await page.goto(home.url);
  return async () => {
    await browser.close();
    await home.stop();
  };
});

const button = (name: string | RegExp) => page.getByRole("button", { name, exact: true });
const answer = () => page.locator('article[data-role="assistant"]').last();
const idle = () => button("Send").waitFor();

async function limit(tokens: number): Promise<void> {
  await button("Settings of this chat").click();
  await page.getByLabel("Most tokens of an answer", { exact: true }).fill(String(tokens));
  await page.keyboard.press("Enter");
  await page.keyboard.press("Escape");
}

test("a question is answered, with its figures", async () => {
  await limit(24);
  await page.getByRole("textbox", { name: "Message" }).fill("What is the capital of France?");
  await page.keyboard.press("Enter");
  await answer().waitFor();
  await idle();
  const text = (await answer().allInnerTexts()).join(" ");
  expect(text).toMatch(/tok\/s/);
  expect(text).toMatch(/first word/);
  expect(text).toMatch(/\d+ → \d+ tokens/);
  expect(page.url()).toMatch(/\/app\/chat\/\w+$/);
});

test("answering again makes a version, and the first one is a click away", async () => {
  await answer().getByRole("button", { name: "Answer again" }).click();
  await answer().getByText("Version 2 of 2").waitFor({ state: "attached" });
  await idle();
  await answer().getByRole("button", { name: "Earlier version" }).click();
  await answer().getByText("Version 1 of 2").waitFor({ state: "attached" });
});

test("asking differently keeps the old question", async () => {
  const question = page.locator('article[data-role="user"]').last();
  await question.hover();
  await question.getByRole("button", { name: "Edit" }).click();
  await page.getByLabel("Text of the message").fill("What is the capital of Italy?");
  await page.keyboard.press("Control+Enter");
  await page.getByText("What is the capital of Italy?").waitFor();
  await page
    .locator('article[data-role="user"]')
    .getByText("Version 2 of 2")
    .waitFor({ state: "attached" });
  await answer().waitFor();
  await idle();
});

test("the next turn finds its context held", async () => {
  await page.getByRole("textbox", { name: "Message" }).fill("And of Spain?");
  await page.keyboard.press("Enter");
  await answer().getByText("cached").waitFor();
  await idle();
});

test("an answer is copied as Markdown", async () => {
  await answer().getByRole("button", { name: "Copy as Markdown" }).click();
  await page.getByText("Copied").waitFor();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  expect(copied.trim().length).toBeGreaterThan(0);
});

test("a chat is renamed, found by its words, and is there after a reload", async () => {
  await button("What is the capital of France?").click();
  await page.getByLabel("Rename").fill("Capitals");
  await page.keyboard.press("Enter");
  await page.getByLabel("Search chats").fill("Italy");
  await page.getByRole("list", { name: "Found chats" }).getByText("Capitals").first().waitFor();
  await button("Clear the search").click();
  await page.reload();
  await page.getByText("And of Spain?").waitFor();
  await page.getByRole("link", { name: "Capitals" }).waitFor();
});

test("a text file is attached and sent", async () => {
  const chooser = page.waitForEvent("filechooser");
  await button("Attach text files").click();
  await (await chooser).setFiles({
    name: "note.txt",
    mimeType: "text/plain",
    buffer: Buffer.from("The password is swordfish."),
  });
  await button(/^note\.txt/).waitFor();
  await page.getByRole("textbox", { name: "Message" }).fill("What does the note say?");
  await page.keyboard.press("Enter");
  await page.locator('article[data-role="user"]').last().getByText("note.txt").waitFor();
  await idle();
});

test("the chat goes out as JSON and comes back in", async () => {
  await button("Chat menu").click();
  const download = page.waitForEvent("download");
  await page.getByRole("menuitem", { name: "Export as JSON" }).click();
  const path = await (await download).path();
  const file = JSON.parse(await readFile(path, "utf8"));
  expect(file.format).toBe("colibri-chats");
  expect(file.chats[0].messages.length).toBeGreaterThan(6);

  await button("Menu for all chats").click();
  const chooser = page.waitForEvent("filechooser");
  await page.getByRole("menuitem", { name: "Import chats" }).click();
  await (await chooser).setFiles({
    name: "chat.json",
    mimeType: "application/json",
    buffer: await readFile(path),
  });
  await page.getByText("1 chat imported.").waitFor();
  await expect.poll(() => page.getByRole("link", { name: "Capitals" }).count()).toBe(2);
});

test("a chat is deleted after a question", async () => {
  const row = page.getByRole("listitem").filter({ hasText: "Capitals" }).first();
  await row.hover();
  await row.getByRole("button", { name: "Menu of Capitals" }).click();
  await page.getByRole("menuitem", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await expect.poll(() => page.getByRole("link", { name: "Capitals" }).count()).toBe(1);
});

test("the keys work: sheet, palette, theme, new chat", async () => {
  await page.keyboard.press("Control+Shift+O");
  await page.getByRole("heading", { name: "What is on your mind?" }).waitFor();
  await page.locator("#main").focus();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+K");
  await page.getByRole("combobox").fill("capit");
  await page.keyboard.press("Enter");
  await page.getByText("And of Spain?").waitFor();
  const theme = () => page.evaluate(() => document.documentElement.dataset["theme"]);
  const before = await theme();
  await page.keyboard.press("Control+Shift+Y");
  await expect.poll(theme).not.toBe(before);
});

test("German is one click away, and stays", async () => {
  await page.goto(`${home.url}/app/settings`);
  await page.getByRole("radio", { name: "Deutsch" }).click();
  await page.getByRole("heading", { name: "Einstellungen" }).waitFor();
  await page.reload();
  await page.getByRole("heading", { name: "Einstellungen" }).waitFor();
  await page.getByRole("radio", { name: "English" }).click();
});

test("settings are kept as a preset, applied to another chat, and thrown away", async () => {
  await page.keyboard.press("Control+Shift+O");
  await page.getByRole("heading", { name: "What is on your mind?" }).waitFor();
  await button("Settings of this chat").click();
  await page.getByLabel("System prompt").fill("Answer in one word.");
  await page.getByLabel("Save as a preset…").fill("Terse");
  await button("Save the preset").click();
  await page.getByLabel("Preset", { exact: true }).waitFor();
  await page.keyboard.press("Escape");
  await page.reload();
  await button("Settings of this chat").click();
  expect(await page.getByLabel("System prompt").inputValue()).toBe("");
  await page.getByLabel("Preset", { exact: true }).selectOption("Terse");
  expect(await page.getByLabel("System prompt").inputValue()).toBe("Answer in one word.");
  await button("Delete the preset").click();
  await expect.poll(() => page.getByLabel("Preset", { exact: true }).count()).toBe(0);
  await page.keyboard.press("Escape");
});

test("Enter belongs to an input method while it composes", async () => {
  await page.keyboard.press("Control+Shift+O");
  const field = page.getByRole("textbox", { name: "Message" });
  await field.focus();
  const input = await page.context().newCDPSession(page);
  await input.send("Input.imeSetComposition", {
    text: "こんにちは",
    selectionStart: 5,
    selectionEnd: 5,
  });
  const before = page.url();
  // As browsers report it while a composition is open.
  await field.evaluate((element) =>
    element.dispatchEvent(
      new KeyboardEvent("keydown", { key: "Enter", isComposing: true, bubbles: true }),
    ),
  );
  await input.send("Input.insertText", { text: "こんにちは" });
  expect(await field.inputValue()).toBe("こんにちは");
  expect(page.url()).toBe(before);
  await limit(8);
  await field.press("Enter");
  await page.locator('article[data-role="user"]').getByText("こんにちは").waitFor();
  await answer().waitFor();
  await idle();
});

test("an engine that dies in mid-answer is told; what came stays, and the next try answers", async () => {
  await limit(400);
  await page.getByRole("textbox", { name: "Message" }).fill("Count to a hundred.");
  await page.keyboard.press("Enter");
  await button("Stop").waitFor();
  // Its own counter, not the figures under an earlier answer: it must have begun.
  await page.locator("#main .flash").getByText("token").waitFor();
  const state = await (await fetch(`${home.url}/api/state`)).json();
  process.kill(state.engine.pid, "SIGKILL");
  const alert = page.getByRole("alert");
  await alert.getByText("The model is not available right now").waitFor();
  await limit(8);
  await alert.getByRole("button", { name: "Try again" }).click();
  await answer().waitFor();
  await idle();
  expect(await page.getByRole("alert").count()).toBe(0);
  await page.getByText("The engine was restarted once").waitFor();
});

test("nothing went wrong on the page meanwhile", () => {
  expect(browser.problems.filter((problem) => !/api\/live|api\/state|404/.test(problem))).toEqual(
    [],
  );
});
