/**
 * The live connection to our own server (`/api/live`): state of the engine, figures, expert maps.
 * Each try that brings no `hello`, refused, forbidden or silent, is told as `connected(false)`.
 *
 * It opens again by itself, waiting longer each time up to 30 s; after each `hello` everything is
 * known again. Contract: docs/dashboard.md.
 */
import type { LiveState, Point } from "./livestate";

export interface LiveHandlers {
  /** The whole state, after each (re)connection. */
  hello(state: LiveState, trend: Point[], instance: string): void;
  update(state: Partial<LiveState>, point: Point | null): void;
  /** An expert map, as docs/dashboard.md lays it out. */
  map(frame: ArrayBuffer): void;
  /** False: the connection is gone, and will be tried again. */
  connected(up: boolean): void;
}

export interface LiveConnection {
  subscribe(wish: { maps?: boolean; map_hz?: number; logs?: boolean }): void;
  close(): void;
}

const VERSION = 1;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 30_000;
/** A proxy may take the upgrade and let nothing through. */
const HELLO_MS = 8_000;

export function connectLive(handlers: LiveHandlers): LiveConnection {
  let socket: WebSocket | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let wait = FIRST_WAIT_MS;
  let wish: object = {};

  function open(): void {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    try {
      socket = new WebSocket(`${scheme}//${location.host}/api/live?version=${VERSION}`);
    } catch {
      // A browser may forbid it altogether.
      gone();
      return;
    }
    timer = setTimeout(() => {
      forget();
      gone();
    }, HELLO_MS);
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => {
      if (data instanceof ArrayBuffer) handlers.map(data);
      else if (typeof data === "string") message(data);
    };
    socket.onclose = () => {
      clearTimeout(timer);
      gone();
    };
  }

  /** Takes no more of this socket; one that does not open does not end either, for minutes. */
  function forget(): void {
    if (!socket) return;
    socket.onmessage = null;
    socket.onclose = null;
    socket.close();
  }

  function gone(): void {
    socket = null;
    handlers.connected(false);
    timer = setTimeout(open, wait);
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }

  function message(text: string): void {
    const data = JSON.parse(text);
    if (data.type === "hello") {
      clearTimeout(timer);
      wait = FIRST_WAIT_MS;
      handlers.connected(true);
      handlers.hello(data.state, data.trend ?? [], data.instance);
      if (Object.keys(wish).length > 0) send({ type: "subscribe", ...wish });
    } else if (data.type === "update") {
      handlers.update(data.state ?? {}, data.point ?? null);
    }
  }

  function send(value: object): void {
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(value));
  }

  open();
  return {
    subscribe(next) {
      wish = { ...wish, ...next };
      send({ type: "subscribe", ...next });
    },
    close() {
      clearTimeout(timer);
      forget();
    },
  };
}
