/** axe finds nothing serious, in both themes and at every width; screenshots are kept to look at. */
import { beforeAll, test } from "vitest";
import { openBrowser } from "./browser";
import { type RunningServer, realServer, shapedServer } from "./servers";
import { check, LOOKS } from "./shots";

let home: RunningServer;
let brain: RunningServer;

beforeAll(async () => {
  [home, brain] = await Promise.all([realServer(), shapedServer(76, 256)]);
  await fetch(`${home.url}/api/chats/import`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ format: "colibri-chats", version: 1, chats: [sample()] }),
  });
  return async () => {
    await home.stop();
    await brain.stop();
  };
});

function sample() {
  const text = (words: string) => ({ type: "text", text: words });
  const answer = [
    "## Hovering\n\nA hummingbird **hovers** by beating its wings some $50$ times a second:",
    "1. The *downstroke* carries about 75 %\n2. The upstroke carries the rest",
    "$$L = \\tfrac{1}{2} \\rho v^2 S C_L$$",
    "| bird | beats/s |\n| --- | --- |\n| bee hummingbird | 80 |\n| giant hummingbird | 12 |",
    "```python\ndef lift(rho: float, v: float) -> float:\n    return 0.5 * rho * v**2  # per area\n```",
    "> See [the article](https://example.com).",
  ].join("\n\n");
  const stats = {
    prompt_tokens: 412,
    completion_tokens: 168,
    cached_tokens: 300,
    queue_wait_ms: 120,
    ttft_ms: 840,
    total_ms: 9000,
    tokens_per_second: 21.4,
    prefill_tokens_per_second: 140,
    estimated: false,
  };
  const failure = { kind: "dropped", message: "The connection ended before the answer did." };
  return {
    id: "sample",
    title: "How hummingbirds hover",
    active: "d",
    messages: [
      {
        id: "a",
        parent: null,
        role: "user",
        parts: [{ type: "file", name: "notes.txt", text: "wings" }, text("How does it hover?")],
      },
      {
        id: "b",
        parent: "a",
        role: "assistant",
        parts: [
          { type: "reasoning", text: "Think of lift." },
          text(answer),
          { type: "tool_call", id: "t", name: "look_up", arguments: '{"bird":"bee"}' },
        ],
        meta: { finish: "stop", reasoning_ms: 3200, stats },
      },
      { id: "c", parent: "b", role: "user", parts: [text("And in rain?")] },
      {
        id: "d",
        parent: "c",
        role: "assistant",
        parts: [text("They shake")],
        meta: { finish: "dropped", failure },
      },
    ],
  };
}

test.each(LOOKS)("$width px, $theme", async ({ width, theme }) => {
  const { page, close } = await openBrowser({ width, height: width < 500 ? 740 : 900, theme });
  const name = (place: string) => `${place}-${width}-${theme}`;
  try {
    await page.goto(`${home.url}/app/chat/sample`);
    await page.locator(".katex").first().waitFor();
    await page.locator(".hljs-keyword").first().waitFor();
    await check(page, name("chat"));
    await page.getByRole("button", { name: "Settings of this chat" }).click();
    await page.getByRole("dialog").waitFor();
    await check(page, name("chat-settings"));
    await page.keyboard.press("Escape");
    if (width < 1024) {
      await page.getByRole("button", { name: "Menu", exact: true }).click();
      await page.getByRole("dialog").getByText("New chat").waitFor();
      await check(page, name("menu"));
      await page.keyboard.press("Escape");
    }
    await page.goto(`${home.url}/app/chat`);
    await page.getByRole("heading", { name: "What is on your mind?" }).waitFor();
    await check(page, name("welcome"));
    await page.goto(`${home.url}/app/settings`);
    await page.getByLabel("Base URL").waitFor();
    await check(page, name("settings"));
    await page.goto(`${brain.url}/app/brain?layer=40&expert=200`);
    await page.getByText("Layer 40, expert 200").waitFor();
    await check(page, name("brain"));
    await page.getByRole("radio", { name: "Table" }).click();
    await page.getByRole("columnheader", { name: "Heat" }).waitFor();
    await check(page, name("brain-table"));
  } finally {
    await close();
  }
});
