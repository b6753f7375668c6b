import { expect, test } from "vitest";
import { createSseParser, type SseEvent } from "./sse";

const STREAM =
  '\uFEFF: hello\r\ndata: {"a":1}\r\n\r\nevent: ping\ndata: x\ndata: y\n\ndata:z\r\rid: 4\nretry: 5\n\ndata: last\n';
const EVENTS: SseEvent[] = [
  { event: "message", data: '{"a":1}' },
  { event: "ping", data: "x\ny" },
  { event: "message", data: "z" },
];

test("events are the same however the stream is cut", () => {
  for (let size = 1; size <= STREAM.length; size++) {
    const parser = createSseParser();
    const events: SseEvent[] = [];
    for (let at = 0; at < STREAM.length; at += size) {
      events.push(...parser.push(STREAM.slice(at, at + size)));
    }
    expect(events, `pieces of ${size}`).toEqual(EVENTS);
  }
});

test("an event without its blank line is not given", () => {
  expect(createSseParser().push("data: half\n")).toEqual([]);
});
