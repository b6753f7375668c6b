/** What our server tells live about itself. Not there (`status: "none"`) with any other server. */
import { create } from "zustand";
import { HttpError, own } from "@/api/http";
import { connectLive, type LiveConnection } from "@/api/live";
import type { LiveState, Point } from "@/api/livestate";
import type { ExpertSnapshot } from "@/core/expertmap";
import { forgetExperts, pauseExperts, takeMap, takeSnapshot } from "./experts";
import { modelsChanged } from "./installed";
import { usePrefs } from "./prefs";
import { chatsChanged } from "./queries";
import { sessionLost } from "./session";

interface Telemetry {
  /**
   * `none`: this server has no such connection. `lost`: it had, and is looked for again.
   * `polling`: no WebSocket gets through, and the state is asked for every two seconds.
   */
  status: "none" | "connecting" | "live" | "polling" | "lost";
  state: LiveState | null;
  trend: Point[];
}

const NOTHING: Telemetry = { status: "none", state: null, trend: [] };
const TREND = 300;
const POLL_MS = 2000;
const POLL_TIMEOUT_MS = 5000;

export const useTelemetry = create<Telemetry>()(() => NOTHING);

/** Of the server that is talked to, if it is the one that tells: null with a foreign one. */
export function useTalkedTo<T>(select: (state: LiveState) => T): T | null {
  const home = usePrefs((prefs) => prefs.base === "");
  const selected = useTelemetry(({ state }) => (state === null ? null : select(state)));
  return home ? selected : null;
}

let connection: LiveConnection | null = null;
let endPolling: (() => void) | null = null;

export function startTelemetry(): void {
  if (connection) return;
  useTelemetry.setState({ ...NOTHING, status: "connecting" });
  connection = connectLive({
    hello(state, trend) {
      pauseExperts();
      tellChanges(useTelemetry.getState().state, state);
      useTelemetry.setState({ status: "live", state, trend });
    },
    update(change, point) {
      const before = useTelemetry.getState().state;
      if (before) take({ ...before, ...change }, point);
    },
    map(frame) {
      // What still comes after the last one has looked away is of no use.
      if (mapsWanted() > 0) takeMap(frame, () => connection?.subscribe({ maps: true }));
    },
    connected(up) {
      if (up) {
        endPolling?.();
        endPolling = null;
      } else if (!endPolling) {
        useTelemetry.setState({ status: "lost" });
        endPolling = repeat(pollState, POLL_MS);
      }
    },
  });
  document.addEventListener("visibilitychange", wishMaps);
  wishMaps();
}

function take(state: LiveState, point: Point | null): void {
  const { state: before, trend } = useTelemetry.getState();
  tellChanges(before, state);
  useTelemetry.setState({
    state,
    trend: point ? [...trend.slice(1 - TREND), point] : trend,
  });
}

/** What other pages have done since the last look: lists are asked for again. */
function tellChanges(before: LiveState | null, now: LiveState): void {
  if (!before) return;
  tellModel(before, now);
  if (now.chats && now.chats.seq !== before.chats?.seq) chatsChanged();
}

/** Another model, or another context of it, was loaded. */
function tellModel(before: LiveState, now: LiveState): void {
  const same =
    before.model?.id === now.model?.id &&
    before.model?.context_length === now.model?.context_length;
  if (!same) modelsChanged();
}

/** How often a second each of those who look at experts wants a map. */
const watchers = new Map<symbol, number>();
let wished = 0;

/** Maps of experts come (`useExperts`) until the returned function is called. */
export function watchExperts(perSecond: number): () => void {
  const me = Symbol();
  watchers.set(me, perSecond);
  wishMaps();
  return () => {
    watchers.delete(me);
    wishMaps();
  };
}

/** Maps a second; 0 while nobody can see them. */
const mapsWanted = () => (document.hidden ? 0 : Math.max(0, ...watchers.values()));

function wishMaps(): void {
  const hz = mapsWanted();
  if (!connection || hz === wished) return;
  if (hz === 0) pauseExperts();
  if (hz === 0) connection.subscribe({ maps: false });
  else connection.subscribe(wished === 0 ? { maps: true, map_hz: hz } : { map_hz: hz });
  wished = hz;
}

/** Where a proxy lets no WebSocket through, the same state is asked for. */
async function pollState(ended: AbortSignal): Promise<void> {
  if (document.hidden) return;
  const signal = AbortSignal.any([ended, AbortSignal.timeout(POLL_TIMEOUT_MS)]);
  try {
    const state = await own<LiveState>("/api/state", { signal });
    if (ended.aborted) return;
    useTelemetry.setState({ status: "polling" });
    take(state, pointOf(state));
    if (mapsWanted() === 0 || state.experts.rows === 0) return;
    const snapshot = await own<ExpertSnapshot>("/experts", { signal });
    if (!ended.aborted) takeSnapshot(snapshot);
  } catch (error) {
    if (ended.aborted) return;
    if (error instanceof HttpError && error.status === 401) sessionLost();
    // A server that is loading has a state and no map of experts.
    const answered = error instanceof HttpError && error.status === 503;
    if (!answered) useTelemetry.setState({ status: "lost" });
  }
}

/** The point of the trend that the WebSocket would have sent; null while nothing runs. */
function pointOf({ speed }: LiveState): Point | null {
  const { decode_tokens_per_second: decode, prefill_tokens_per_second: prefill } = speed;
  if (decode === null && prefill === null) return null;
  return {
    at_ms: Date.now(),
    decode_tokens_per_second: decode ?? 0,
    prefill_tokens_per_second: prefill ?? 0,
    disk_bytes_per_second: speed.disk_bytes_per_second,
  };
}

/** Does it at once, and again so long after each end, until the returned function is called. */
function repeat(look: (ended: AbortSignal) => Promise<void>, everyMs: number): () => void {
  const ending = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const next = async () => {
    await look(ending.signal);
    if (!ending.signal.aborted) timer = setTimeout(next, everyMs);
  };
  void next();
  return () => {
    ending.abort();
    clearTimeout(timer);
  };
}

export function stopTelemetry(): void {
  connection?.close();
  connection = null;
  endPolling?.();
  endPolling = null;
  document.removeEventListener("visibilitychange", wishMaps);
  wished = 0;
  forgetExperts();
  useTelemetry.setState(NOTHING);
}
