import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Frames } from "./frames";

/** Frames of the browser, one by one. */
let asked: FrameRequestCallback[];
let now: number;

beforeEach(() => {
  asked = [];
  now = 0;
  vi.stubGlobal("requestAnimationFrame", (run: FrameRequestCallback) => asked.push(run));
  vi.stubGlobal("cancelAnimationFrame", () => {
    asked = [];
  });
});

afterEach(() => vi.unstubAllGlobals());

function frame(after = 16): void {
  now += after;
  const runs = asked;
  asked = [];
  for (const run of runs) run(now);
}

test("a wish is one step, however often it is wished; at rest there is none", () => {
  const step = vi.fn(() => true);
  const frames = new Frames(step);
  frames.wish();
  frames.wish();
  expect(asked).toHaveLength(1);
  frame();
  frames.drawn();
  expect(step).toHaveBeenCalledTimes(1);
  expect(asked).toHaveLength(0);
});

test("what moves goes on until it is there", () => {
  let left = 3;
  const frames = new Frames(() => --left === 0);
  frames.wish();
  for (let at = 0; at < 5; at++) {
    frame();
    frames.drawn();
  }
  expect(left).toBe(0);
  expect(asked).toHaveLength(0);
});

test("the next step waits until the last one is drawn, and is not forgotten", () => {
  const step = vi.fn(() => true);
  const frames = new Frames(step);
  frames.wish();
  frame();
  frames.wish();
  frames.wish();
  expect(asked).toHaveLength(0);
  frames.drawn();
  frame();
  expect(step).toHaveBeenCalledTimes(2);
});

test("a step that had nothing to draw on is not waited for", () => {
  let room = false;
  const step = vi.fn(() => (room ? true : null));
  const frames = new Frames(step);
  frames.wish();
  frame();
  room = true;
  frames.wish();
  frame();
  expect(step).toHaveBeenCalledTimes(2);
});

test("a rest does not count as time that has passed", () => {
  const passed: number[] = [];
  const frames = new Frames((seconds) => {
    passed.push(seconds);
    return true;
  });
  for (const after of [10_000, 16, 60_000]) {
    frames.wish();
    frame(after);
    frames.drawn();
  }
  expect(passed).toEqual([0.05, 0.016, 0.05]);
});

test("after the end nothing is drawn until the next wish", () => {
  const step = vi.fn(() => false);
  const frames = new Frames(step);
  frames.wish();
  frames.end();
  frame();
  frames.drawn();
  expect(step).not.toHaveBeenCalled();
  frames.wish();
  frame();
  expect(step).toHaveBeenCalledTimes(1);
});
