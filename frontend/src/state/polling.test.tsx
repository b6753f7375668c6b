/** Where no WebSocket gets through, the state is asked for: `/api/state` every two seconds. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { useExperts } from "./experts";
import { queryClient } from "./queries";
import { FakeSocket } from "./socket.made";
import { startTelemetry, stopTelemetry, useTelemetry, watchExperts } from "./telemetry";

const RUNNING = { decode_tokens_per_second: 7, prefill_tokens_per_second: null };
const IDLE = { decode_tokens_per_second: null, prefill_tokens_per_second: null };

/** What the server answers next; null: nobody answers. */
let state: Record<string, unknown> | null;
let asked: string[];

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("WebSocket", FakeSocket);
  state = { experts: { rows: 0 }, speed: { ...IDLE, disk_bytes_per_second: 0 }, chats: { seq: 1 } };
  asked = [];
  vi.stubGlobal("fetch", async (path: string) => {
    asked.push(path);
    if (state === null) throw new TypeError("nobody answers");
    if (path !== "/experts") return Response.json(state);
    return Response.json({ rows: 1, cols: 2, tiers: [0, 1], heat: [3, 4], hits: [5, 6], seq: 1 });
  });
});

afterEach(() => {
  stopTelemetry();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

const status = () => useTelemetry.getState().status;

/** The upgrade is refused, now and at every later try. */
async function refused(): Promise<void> {
  startTelemetry();
  expect(status()).toBe("connecting");
  FakeSocket.last.close();
  await vi.advanceTimersByTimeAsync(0);
}

test("a refused upgrade is told at once, and the state is asked for", async () => {
  await refused();
  expect(status()).toBe("polling");
  expect(asked).toEqual(["/api/state"]);
  await vi.advanceTimersByTimeAsync(6000);
  expect(asked).toHaveLength(4);
});

test("further refusals change nothing about it", async () => {
  await refused();
  const seen = new Set<string>();
  const stop = useTelemetry.subscribe((telemetry) => seen.add(telemetry.status));
  const before = FakeSocket.last;
  for (let second = 0; second < 60; second++) {
    await vi.advanceTimersByTimeAsync(1000);
    if (FakeSocket.last.onclose) FakeSocket.last.close();
  }
  stop();
  expect(FakeSocket.last).not.toBe(before);
  expect([...seen]).toEqual(["polling"]);
  expect(asked.length).toBe(31);
});

test("the trend goes on while something runs", async () => {
  await refused();
  expect(useTelemetry.getState().trend).toEqual([]);
  state = { ...state, speed: { ...RUNNING, disk_bytes_per_second: 9 } };
  await vi.advanceTimersByTimeAsync(4000);
  const points = useTelemetry.getState().trend;
  expect(points).toHaveLength(2);
  expect(points[0]).toMatchObject({
    decode_tokens_per_second: 7,
    prefill_tokens_per_second: 0,
    disk_bytes_per_second: 9,
  });
});

test("what other pages do is noticed", async () => {
  await refused();
  const again = vi.spyOn(queryClient, "invalidateQueries");
  const times = (name: string) =>
    again.mock.calls.filter(([filters]) => filters?.queryKey?.[0] === name).length;
  await vi.advanceTimersByTimeAsync(2000);
  expect(times("chats") + times("models")).toBe(0);
  state = { ...state, chats: { seq: 2 }, model: { id: "b", context_length: 5 } };
  await vi.advanceTimersByTimeAsync(2000);
  expect(times("chats")).toBe(1);
  expect(times("models")).toBe(1);
});

test("maps of experts are asked for while somebody looks", async () => {
  state = { ...state, experts: { rows: 1, cols: 2 } };
  await refused();
  expect(asked).not.toContain("/experts");
  const stop = watchExperts(10);
  await vi.advanceTimersByTimeAsync(2000);
  expect([...(useExperts.getState().map?.hits ?? [])]).toEqual([5, 6]);
  stop();
  asked.length = 0;
  await vi.advanceTimersByTimeAsync(4000);
  expect(asked).toEqual(["/api/state", "/api/state"]);
});

test("nobody asks from a page that is hidden", async () => {
  await refused();
  vi.spyOn(document, "hidden", "get").mockReturnValue(true);
  asked.length = 0;
  await vi.advanceTimersByTimeAsync(10_000);
  expect(asked).toEqual([]);
});

test("a server that is gone is lost, and found again", async () => {
  await refused();
  const shown = useTelemetry.getState().state;
  state = null;
  await vi.advanceTimersByTimeAsync(2000);
  expect(status()).toBe("lost");
  // What it showed last stays.
  expect(useTelemetry.getState().state).toBe(shown);
  state = { ...shown };
  await vi.advanceTimersByTimeAsync(2000);
  expect(status()).toBe("polling");
});

test("a WebSocket that gets through ends the asking, and a late answer is not taken", async () => {
  await refused();
  let answer: (response: Response) => void = () => {};
  vi.stubGlobal("fetch", () => {
    asked.push("late");
    return new Promise<Response>((done) => {
      answer = done;
    });
  });
  await vi.advanceTimersByTimeAsync(2000);
  const live = { experts: { rows: 0 }, chats: { seq: 9 } };
  FakeSocket.last.says({ type: "hello", state: live, trend: [], instance: "a" });
  answer(Response.json({ old: true }));
  await vi.advanceTimersByTimeAsync(20_000);
  expect(status()).toBe("live");
  expect(useTelemetry.getState().state).toEqual(live);
  expect(asked).toEqual(["/api/state", "late"]);
});

test("a proxy that takes the upgrade and lets nothing through is given up on", async () => {
  startTelemetry();
  const first = FakeSocket.last;
  await vi.advanceTimersByTimeAsync(7000);
  expect(asked).toEqual([]);
  await vi.advanceTimersByTimeAsync(2000);
  expect(status()).toBe("polling");
  expect(FakeSocket.last).not.toBe(first);
});

test("a browser that forbids WebSockets gets the same", async () => {
  vi.stubGlobal(
    "WebSocket",
    class {
      constructor() {
        throw new DOMException("forbidden", "SecurityError");
      }
    },
  );
  startTelemetry();
  await vi.advanceTimersByTimeAsync(10_000);
  expect(status()).toBe("polling");
});

test("after the end nothing is asked any more", async () => {
  await refused();
  stopTelemetry();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toEqual(["/api/state"]);
  expect(status()).toBe("none");
});
