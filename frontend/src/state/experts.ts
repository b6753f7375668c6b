/**
 * The latest map of the experts of our server, while somebody looks at one (`watchExperts`).
 *
 * Each map is a new object, so whoever draws keeps the last one and sees what has changed. Those who
 * show figures take it once a second at most (`useSlowExperts`).
 */
import { useEffect, useState } from "react";
import { create } from "zustand";
import {
  type ExpertMap,
  type ExpertSnapshot,
  mapOfSnapshot,
  NONE_ROUTED,
  type Routed,
  routedSince,
  takeFrame,
} from "@/core/expertmap";

interface Experts {
  map: ExpertMap | null;
  /** What was asked for since the map before this one. */
  routed: Routed;
  /** Why the last message could not be read as a map. */
  problem: string | null;
}

const NOTHING: Experts = { map: null, routed: NONE_ROUTED, problem: null };

export const useExperts = create<Experts>()(() => NOTHING);

/** After a pause or on a new connection: what comes next is no news about what was before. */
let fresh = true;
/** A whole map has been asked for; deltas of others are on their way still. */
let asked = false;

/** Forgets what the next map would be compared with; the picture stays until that map is there. */
export function pauseExperts(): void {
  fresh = true;
  asked = false;
}

/** There is no connection any more. */
export function forgetExperts(): void {
  pauseExperts();
  useExperts.setState(NOTHING);
}

/** Takes a message; `askAgain` is called where a whole map is needed. */
export function takeMap(frame: ArrayBuffer, askAgain: () => void): void {
  const before = useExperts.getState().map;
  const taken = takeFrame(frame, fresh ? null : before);
  if (taken.kind === "map") {
    show(taken.map);
  } else if (taken.kind === "broken") {
    useExperts.setState({ problem: taken.reason });
  } else if (!asked) {
    asked = true;
    askAgain();
  }
}

export function takeSnapshot(snapshot: ExpertSnapshot): void {
  const map = mapOfSnapshot(snapshot);
  if (map) show(map);
}

function show(map: ExpertMap): void {
  const routed = routedSince(fresh ? null : useExperts.getState().map, map);
  fresh = false;
  asked = false;
  useExperts.setState({ map, routed, problem: null });
}

/** The map as of at most `everyMs` ago. */
export function useSlowExperts(everyMs = 1000): ExpertMap | null {
  const [shown, setShown] = useState(() => useExperts.getState().map);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const show = () => {
      timer = undefined;
      setShown(useExperts.getState().map);
    };
    show();
    const stop = useExperts.subscribe(({ map }, before) => {
      if (map === before.map) return;
      // The first one at once.
      if (!before.map) show();
      else timer ??= setTimeout(show, everyMs);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [everyMs]);
  return shown;
}
