/**
 * What pointers, the wheel and keys do to the galaxy: drag spins, wheel and two fingers zoom, a click
 * or a tap takes the expert under it. Each changes where the camera is to be; the frames follow. What
 * stands over the picture and has a use of its own is marked `data-over`.
 */
import { type KeyboardEvent, type RefObject, useEffect, useRef } from "react";
import { HOME, spin, type View, zoom } from "@/core/orbit";

/** A pointer that has moved less than this has not dragged. */
const CLICK_PIXELS = 5;
const WHEEL = 0.0016;
const LINE_PIXELS = 16;
const KEY_ANGLE = 0.16;

interface OrbitHandlers {
  /** The camera is to move. */
  moved(): void;
  /** A mouse stands over the picture, not dragging; null: it has left, or drags. */
  hover(spot: { x: number; y: number } | null): void;
  /** Places in CSS pixels from the upper left; `touch`: nothing was hovered before. */
  click(spot: { x: number; y: number }, touch: boolean): void;
}

interface Finger {
  x: number;
  y: number;
  path: number;
}

export function useOrbit(
  place: RefObject<HTMLElement | null>,
  target: View,
  handlers: OrbitHandlers,
): void {
  const latest = useRef(handlers);
  useEffect(() => {
    latest.current = handlers;
  });

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const fingers = new Map<number, Finger>();
    const end = new AbortController();
    const listen = <K extends keyof HTMLElementEventMap>(
      type: K,
      run: (event: HTMLElementEventMap[K]) => void,
    ) => element.addEventListener(type, run, { signal: end.signal, passive: false });
    const spotOf = (event: MouseEvent) => {
      const box = element.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };

    listen("pointerdown", (event) => {
      if (event.button !== 0 || (event.target as Element).closest("[data-over]")) return;
      element.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, { ...spotOf(event), path: 0 });
      // Of two fingers none taps, not even the one that lies still.
      if (fingers.size > 1) for (const finger of fingers.values()) finger.path = CLICK_PIXELS;
    });
    listen("pointermove", (event) => {
      const spot = spotOf(event);
      const finger = fingers.get(event.pointerId);
      if (!finger) {
        if (event.pointerType === "mouse") latest.current.hover(spot);
        return;
      }
      const before = spread(fingers);
      const [dx, dy] = [spot.x - finger.x, spot.y - finger.y];
      finger.x = spot.x;
      finger.y = spot.y;
      finger.path += Math.abs(dx) + Math.abs(dy);
      if (finger.path < CLICK_PIXELS) return;
      latest.current.hover(null);
      // From one side to the other is half a turn, however large the picture is.
      const turn = Math.PI / Math.min(element.clientWidth, element.clientHeight) / fingers.size;
      spin(target, -dx * turn, dy * turn);
      const after = spread(fingers);
      if (before > 0 && after > 0) zoom(target, after / before);
      latest.current.moved();
    });
    listen("pointerup", (event) => {
      const finger = fingers.get(event.pointerId);
      if (!finger) return;
      if (fingers.size === 1 && finger.path < CLICK_PIXELS) {
        latest.current.click(spotOf(event), event.pointerType !== "mouse");
      }
      fingers.delete(event.pointerId);
    });
    listen("pointercancel", (event) => fingers.delete(event.pointerId));
    listen("pointerleave", () => latest.current.hover(null));
    listen("wheel", (event) => {
      event.preventDefault();
      const pixels = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? LINE_PIXELS : 1;
      // Two fingers on a touchpad come as a wheel with Ctrl, in small steps.
      const way = event.deltaY * pixels * (event.ctrlKey ? 6 : 1);
      zoom(target, Math.exp(-Math.min(400, Math.max(-400, way)) * WHEEL));
      latest.current.moved();
    });
    return () => end.abort();
  }, [place, target]);
}

function spread(fingers: Map<number, Finger>): number {
  const [one, two] = fingers.values();
  return one && two ? Math.hypot(one.x - two.x, one.y - two.y) : 0;
}

/** Moves the camera for a key; false: the key means nothing to it. */
export function orbitKey(event: KeyboardEvent, target: View): boolean {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  switch (event.key) {
    case "ArrowLeft":
      spin(target, -KEY_ANGLE, 0);
      return true;
    case "ArrowRight":
      spin(target, KEY_ANGLE, 0);
      return true;
    case "ArrowUp":
      spin(target, 0, KEY_ANGLE);
      return true;
    case "ArrowDown":
      spin(target, 0, -KEY_ANGLE);
      return true;
    case "+":
    case "=":
      zoom(target, 1.25);
      return true;
    case "-":
      zoom(target, 1 / 1.25);
      return true;
    case "Home":
    case "0":
      Object.assign(target, HOME);
      return true;
    default:
      return false;
  }
}
