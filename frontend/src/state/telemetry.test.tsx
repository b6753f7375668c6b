import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { useExperts } from "./experts";
import { queryClient } from "./queries";
import { FakeSocket } from "./socket.made";
import { startTelemetry, stopTelemetry, useTelemetry, watchExperts } from "./telemetry";

const HELLO = { type: "hello", state: { experts: { rows: 1, cols: 2 } }, trend: [], instance: "a" };

/** A map of one row of two experts; with `base` a delta that changes the first one. */
function map(seq: number, hits: number, base?: number): ArrayBuffer {
  const n = base === undefined ? 2 : 1;
  const buffer = new ArrayBuffer(32 + n * (base === undefined ? 4 : 8));
  const view = new DataView(buffer);
  for (const [at, letter] of [..."CBXM"].entries()) view.setUint8(at, letter.charCodeAt(0));
  view.setUint8(4, 1);
  view.setUint8(5, base === undefined ? 1 : 2);
  for (const [at, word] of [1, 2, seq, base ?? 0, 1, n].entries()) {
    view.setUint32(8 + 4 * at, word, true);
  }
  view.setUint16(36, hits, true);
  return buffer;
}

let socket: FakeSocket;

beforeEach(() => {
  vi.stubGlobal("WebSocket", FakeSocket);
  startTelemetry();
  socket = FakeSocket.last;
  socket.says(HELLO);
});

afterEach(() => {
  stopTelemetry();
  vi.unstubAllGlobals();
});

const subscribed = () => socket.sent.filter(({ type }) => type === "subscribe");

test("maps come while somebody looks, as often as the most curious one wants", () => {
  expect(subscribed()).toEqual([]);
  const small = watchExperts(5);
  const large = watchExperts(10);
  large();
  small();
  expect(subscribed()).toEqual([
    { type: "subscribe", maps: true, map_hz: 5 },
    { type: "subscribe", map_hz: 10 },
    { type: "subscribe", map_hz: 5 },
    { type: "subscribe", maps: false },
  ]);
});

test("nobody sees a page that is hidden", () => {
  const stop = watchExperts(10);
  const hidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
  document.dispatchEvent(new Event("visibilitychange"));
  expect(subscribed().at(-1)).toEqual({ type: "subscribe", maps: false });
  hidden.mockReturnValue(false);
  document.dispatchEvent(new Event("visibilitychange"));
  expect(subscribed().at(-1)).toEqual({ type: "subscribe", maps: true, map_hz: 10 });
  stop();
});

test("a delta whose base is missing brings a whole map, asked for once", () => {
  const stop = watchExperts(10);
  socket.says(map(1, 0));
  socket.says(map(2, 3, 1));
  expect(useExperts.getState().map?.hits[0]).toBe(3);
  expect([...useExperts.getState().routed.cells]).toEqual([0]);
  const before = socket.sent.length;
  socket.says(map(9, 4, 8));
  socket.says(map(10, 5, 9));
  expect(socket.sent.slice(before)).toEqual([{ type: "subscribe", maps: true }]);
  expect(useExperts.getState().map?.hits[0]).toBe(3);
  socket.says(map(11, 6));
  socket.says(map(12, 7, 11));
  expect(useExperts.getState().map?.hits[0]).toBe(7);
  stop();
});

test("what is no map is told and takes nothing away", () => {
  const stop = watchExperts(10);
  socket.says(map(1, 2));
  socket.says(new ArrayBuffer(40));
  expect(useExperts.getState().problem).toBe("it is no map");
  expect(useExperts.getState().map?.hits[0]).toBe(2);
  socket.says(map(2, 3, 1));
  expect(useExperts.getState().problem).toBeNull();
  stop();
});

test("after a pause, or on a new connection, nothing flashes for what was before", () => {
  let stop = watchExperts(10);
  socket.says(map(1, 1));
  stop();
  stop = watchExperts(10);
  socket.says(map(5, 9));
  expect([...useExperts.getState().routed.cells]).toEqual([]);
  // The connection breaks; the server that answers next may be another one.
  socket.says(HELLO);
  socket.says(map(1, 20));
  expect([...useExperts.getState().routed.cells]).toEqual([]);
  expect(subscribed().at(-1)).toMatchObject({ maps: true, map_hz: 10 });
  stop();
});

test("without telemetry there is no map", () => {
  const stop = watchExperts(10);
  socket.says(map(1, 1));
  stopTelemetry();
  expect(useExperts.getState().map).toBeNull();
  expect(useTelemetry.getState().status).toBe("none");
  stop();
});

test("a model that any page has loaded is asked about again, once", () => {
  const asked = vi.spyOn(queryClient, "invalidateQueries");
  const times = () =>
    asked.mock.calls.filter(([filters]) => filters?.queryKey?.[0] === "models").length;
  const model = { id: "a", context_length: 10 };
  socket.says({ type: "update", state: { model } });
  expect(times()).toBe(1);
  socket.says({ type: "update", state: { model: { ...model, warnings: ["w"] } } });
  socket.says({ type: "update", state: { chats: { seq: 1 } } });
  expect(times()).toBe(1);
  socket.says({ type: "update", state: { model: { ...model, context_length: 20 } } });
  socket.says({ type: "update", state: { model: null } });
  expect(times()).toBe(3);
});
