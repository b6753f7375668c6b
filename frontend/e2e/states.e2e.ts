/** Every state that a turn can get into, with the action that the page offers, on scripted answers. */
import type { Page } from "playwright-core";
import { afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { type Browser, openBrowser } from "./browser";
import {
  type RunningServer,
  realServer,
  type ScriptedServer,
  scriptedServer,
  spelled,
} from "./servers";

let home: RunningServer;
let other: ScriptedServer;
let browser: Browser;
let page: Page;

beforeAll(async () => {
  [home, other] = await Promise.all([realServer(), scriptedServer()]);
  return async () => {
    await home.stop();
    await other.stop();
  };
});

beforeEach(async () => {
  other.requests.length = 0;
  browser = await openBrowser();
  page = browser.page;
  await page.addInitScript((base) => {
    localStorage.setItem("colibri.prefs", JSON.stringify({ base, key: "k" }));
  }, other.url);
  await page.goto(`${home.url}/app/`);
});

afterEach(() => browser.close());

async function say(text: string): Promise<void> {
  await page.getByRole("textbox", { name: "Message" }).fill(text);
  await page.keyboard.press("Enter");
}

const answer = () => page.locator('article[data-role="assistant"]').last();
// What is on the screen; the live region says the same to screen readers, earlier.
const seen = (text: string) => page.locator("#main").getByText(text).first().waitFor();

test("a busy server is waited for and asked again (429)", async () => {
  const body = { error: { message: "The queue is full.", type: "rate_limit_error" } };
  other.script(
    { status: 429, headers: { "Retry-After": "2" }, body },
    { deltas: spelled("Done now.") },
  );
  await say("hi");
  await seen("Trying again in");
  await seen("Done now.");
  expect(other.requests).toHaveLength(2);
});

test("a broken connection keeps what came, and goes on from there", async () => {
  other.script(
    { deltas: spelled("The first half"), everyMs: 50, breaks: true },
    { deltas: spelled(" and the rest.") },
  );
  await say("hi");
  await seen("The connection broke");
  await page.getByRole("alert").getByRole("button", { name: "Continue" }).click();
  await seen("The first half and the rest.");
  const sent = other.requests[1]?.["messages"] ?? [];
  const last = (sent as { role: string; content: string }[]).slice(-2);
  expect(last[0]).toEqual({ role: "assistant", content: "The first half" });
  expect(last[1]?.role).toBe("user");
});

test("a full context offers to leave out the oldest messages", async () => {
  const message =
    "This model's maximum context length is 100 tokens. However, your messages resulted in 150 tokens.";
  const body = { error: { message, code: "context_length_exceeded" } };
  other.script({ deltas: spelled("One.") }, { status: 400, body }, { deltas: spelled("Two.") });
  await say("a question with quite some words in it, to be left out ".repeat(4));
  await seen("One.");
  await say("short");
  await seen("longer than the model's context");
  await page.getByRole("button", { name: "Send without the oldest messages" }).click();
  await seen("Two.");
  expect(other.requests.at(-1)?.["messages"]).toEqual([{ role: "user", content: "short" }]);
  await seen("above are not sent");
});

test("a key that is missing or wrong is told, with the way to the settings (401)", async () => {
  other.script({ status: 401, body: { error: { message: "The API key is wrong." } } });
  await say("hi");
  await seen("The server wants a key");
  await page.getByRole("button", { name: "Check the connection" }).click();
  await page.getByLabel("Base URL").waitFor();
  expect(await page.getByLabel("Base URL").inputValue()).toBe(other.url);
});

test("an engine that is lost in mid-answer is told, and tried again by hand", async () => {
  other.script(
    { status: 500, body: { error: { message: "It broke." } } },
    { deltas: spelled("Back.") },
  );
  await say("hi");
  await seen("Something went wrong on the server");
  await page.getByRole("alert").getByRole("button", { name: "Try again" }).click();
  await seen("Back.");
  // The failed answer made room.
  expect(await page.locator('article[data-role="assistant"]').count()).toBe(1);
});

test("R080: reasoning opens while it comes, folds afterwards, and is not sent back", async () => {
  other.script({
    deltas: [
      { reasoning_content: "Let me think." },
      ...Array.from({ length: 20 }, () => ({ reasoning_content: " Hm." })),
      ...spelled("An answer."),
    ],
    everyMs: 150,
  });
  await say("hi");
  await page.getByText("Let me think.").first().waitFor();
  await page.locator("#main").getByText("complete").waitFor();
  expect(await page.getByText("Let me think.").count()).toBe(0);
  await page.getByRole("button", { name: /Reasoning|Thought/ }).click();
  await seen("Let me think.");
  await say("more");
  await expect.poll(() => other.requests.length).toBe(2);
  expect(JSON.stringify(other.requests[1])).not.toContain("Let me think");
});

test("a tool call is shown with its arguments", async () => {
  const call = { index: 0, id: "c", function: { name: "look_up", arguments: '{"word":"bird"}' } };
  other.script({ deltas: [{ tool_calls: [call] }], finish: "tool_calls" });
  await say("hi");
  await page.getByText("look_up").click();
  await seen('"word": "bird"');
  await seen("called a tool");
});

test("R133: hostile markdown is inert", async () => {
  const text =
    "<img src=x onerror=\"document.title='owned'\"> [x](javascript:document.title='owned')\n\n" +
    "![p](https://example.invalid/leak.png) <script>document.title='owned'</script>\n\nend";
  other.script({ deltas: spelled(text) });
  const asked: string[] = [];
  page.on("request", (request) => asked.push(request.url()));
  await say("hi");
  await seen("complete");
  await answer().getByText("end").waitFor();
  expect(await page.title()).not.toContain("owned");
  expect(await answer().locator("img, script").count()).toBe(0);
  expect(asked.filter((url) => url.includes("example.invalid"))).toEqual([]);
});

test("stopping keeps what came; the rest of the page works on", async () => {
  other.script({ deltas: spelled("word ".repeat(400), 5), everyMs: 30 });
  await say("hi");
  await answer().getByText("word word").waitFor();
  await page.keyboard.press("Escape");
  await seen("stopped by you");
  await page.getByRole("button", { name: "Send" }).waitFor();
});

test("a server that is no server is explained", async () => {
  await page.goto(`${home.url}/app/settings`);
  await page.getByLabel("Base URL").fill("http://127.0.0.1:9/v1");
  await page.getByRole("button", { name: "Save and test" }).click();
  await seen("Nothing answers there.");
});

test("R189: without storage the page works from memory", async () => {
  const bare = await openBrowser();
  try {
    await bare.page.addInitScript(() => {
      Object.defineProperty(window, "localStorage", {
        get() {
          throw new DOMException("refused", "SecurityError");
        },
      });
    });
    await bare.page.goto(`${home.url}/app/settings`);
    await bare.page.getByText("This browser stores nothing").waitFor();
    await bare.page.getByRole("radio", { name: "Dark" }).click();
    await expect
      .poll(() => bare.page.evaluate(() => document.documentElement.dataset["theme"]))
      .toBe("dark");
    expect(bare.problems.filter((problem) => !/live|404/.test(problem))).toEqual([]);
  } finally {
    await bare.close();
  }
});

test("without a server of ours and without a database chats last as long as the page", async () => {
  const bare = await openBrowser();
  try {
    await bare.page.route("**/api/session", (route) => route.fulfill({ status: 404, body: "" }));
    await bare.page.addInitScript((base) => {
      localStorage.setItem("colibri.prefs", JSON.stringify({ base }));
      Object.defineProperty(window, "indexedDB", {
        get() {
          throw new DOMException("refused", "SecurityError");
        },
      });
    }, other.url);
    other.script({ deltas: spelled("From memory.") });
    await bare.page.goto(`${home.url}/app/`);
    await bare.page.getByText("This browser stores nothing: chats are gone").waitFor();
    await bare.page.getByRole("textbox", { name: "Message" }).fill("hi");
    await bare.page.keyboard.press("Enter");
    await bare.page.locator("#main").getByText("From memory.").first().waitFor();
    await bare.page.getByRole("link", { name: "hi" }).waitFor();
  } finally {
    await bare.close();
  }
});
