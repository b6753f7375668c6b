import { expect, test } from "vitest";
import { type Client, fill } from "@/core/snippet";
import clients from "./clients.json";

const values = { url: "http://box:9000", model: "m/1", key: "k", context: 4096 };

test("every client gets this server's own values, and nothing is left to fill in", () => {
  for (const client of clients as Client[]) {
    const texts = client.blocks.map(({ text }) => fill(text, values)).join("\n");
    expect(texts, client.name).not.toMatch(/%[A-Z]+%/);
    expect(texts, client.name).toMatch(/http:\/\/box:9000|colibri/);
  }
});

test("what is to be JSON is JSON", () => {
  const blocks = (clients as Client[]).flatMap((client) => client.blocks);
  const json = blocks.filter(({ language }) => language === "json");
  expect(json.length).toBeGreaterThan(1);
  for (const { text } of json) expect(JSON.parse(fill(text, values))).toBeTruthy();
});
