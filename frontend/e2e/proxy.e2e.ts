/** Behind a proxy that lets no WebSocket through: the page asks for what it would have been told. */
import { createServer, request, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeAll, expect, test } from "vitest";
import { type Browser, openBrowser } from "./browser";
import { type RunningServer, shapedServer } from "./servers";

let server: RunningServer;
let proxy: RunningServer & { upgrades: number };
let browser: Browser;

beforeAll(async () => {
  const script = { pieces: ["On", " and", " on."], repeat: true, token_ms: 50 };
  server = await shapedServer(3, 32, { script });
  proxy = await plainProxy(server.url);
  return async () => {
    await proxy.stop();
    await server.stop();
  };
});

afterEach(() => browser.close());

/** Passes every request on without what belongs to one connection only, as proxies do unasked. */
async function plainProxy(url: string): Promise<RunningServer & { upgrades: number }> {
  const { hostname, port } = new URL(url);
  const told = { upgrades: 0 };
  const relay: Server = createServer((incoming, outgoing) => {
    const { upgrade, connection, ...headers } = incoming.headers;
    if (upgrade) told.upgrades++;
    const { method, url: path } = incoming;
    const passed = request({ hostname, port, method, path, headers }, (answer) => {
      outgoing.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(outgoing);
    });
    passed.on("error", () => outgoing.destroy());
    outgoing.on("close", () => passed.destroy());
    incoming.pipe(passed);
  });
  await new Promise<void>((done) => relay.listen(0, "127.0.0.1", done));
  return Object.assign(told, {
    url: `http://127.0.0.1:${(relay.address() as AddressInfo).port}`,
    stop: () =>
      new Promise<void>((done) => {
        relay.closeAllConnections();
        relay.close(() => done());
      }),
  });
}

test("figures, the brain and the chat live on behind a proxy without WebSockets", async () => {
  browser = await openBrowser();
  const { page } = browser;
  await page.goto(`${proxy.url}/app/chat`);
  const panel = page.getByRole("complementary", { name: "Runtime" });
  await panel.getByRole("heading", { name: "Requests" }).waitFor();
  expect(proxy.upgrades).toBeGreaterThan(0);
  await page.getByRole("textbox", { name: "Message" }).fill("go on");
  await page.keyboard.press("Enter");
  await page.getByText("On and on.").first().waitFor();
  // Two looks while it writes make a line of the trend.
  await panel.getByRole("img", { name: "Tokens per second over the last minutes" }).waitFor();
  await page.getByRole("link", { name: "Open the brain" }).click();
  await page.getByRole("application", { name: "Cortex: 3 layers of 32 experts" }).waitFor();
  // Further refusals take nothing away, at no time.
  await expect.poll(() => proxy.upgrades, { timeout: 30_000 }).toBeGreaterThan(3);
  expect(await page.getByText("The live connection is gone").count()).toBe(0);
  // What is gone is told, and found again.
  await page.route("**/api/state", (route) => route.abort());
  await page.getByText("The live connection is gone").first().waitFor();
  await page.unroute("**/api/state");
  await expect
    .poll(() => page.getByText("The live connection is gone").count(), { timeout: 20_000 })
    .toBe(0);
});
