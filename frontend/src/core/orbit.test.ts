import { PerspectiveCamera, Vector3 } from "three";
import { expect, test } from "vitest";
import {
  aim,
  approach,
  distanceOf,
  HALF_ANGLE,
  HOME,
  newCamera,
  pick,
  project,
  spin,
  type View,
  zoom,
} from "./orbit";

const view = (): View => ({ ...HOME });

test("angles and distances have their limits", () => {
  const one = view();
  spin(one, 0, 99);
  expect(one.pitch).toBeLessThan(Math.PI / 2);
  spin(one, 0, -99);
  expect(one.pitch).toBeGreaterThan(-Math.PI / 2);
  for (let at = 0; at < 99; at++) zoom(one, 1.5);
  expect(distanceOf(one, 1)).toBeGreaterThan(0.2);
  for (let at = 0; at < 99; at++) zoom(one, 0.5);
  expect(distanceOf(one, 1)).toBeLessThan(10);
});

test("a narrow picture is looked at from farther away", () => {
  expect(distanceOf(view(), 0.5)).toBeCloseTo(2 * distanceOf(view(), 1));
  expect(distanceOf(view(), 3)).toBe(distanceOf(view(), 1));
});

test("a view comes to rest where it was to be", () => {
  const [from, to] = [view(), { yaw: 3, pitch: -1, zoom: 4 }];
  let frames = 0;
  while (!approach(from, to, 1 / 60)) frames++;
  expect(from).toEqual(to);
  expect(frames).toBeGreaterThan(5);
  expect(frames).toBeLessThan(60);
});

test.each([
  [HOME.yaw, HOME.pitch, 1, 800, 600],
  [-2, -1.2, 3, 320, 700],
])("places are where three.js draws them (%f, %f)", (yaw, pitch, near, width, height) => {
  const one = { yaw, pitch, zoom: near };
  const camera = newCamera();
  aim(camera, one, width, height);
  const theirs = new PerspectiveCamera((HALF_ANGLE * 360) / Math.PI, width / height, 0.01, 100);
  theirs.position.set(camera.x, camera.y, camera.z);
  theirs.lookAt(0, 0, 0);
  theirs.updateMatrixWorld();
  for (const [x, y, z] of [
    [0, 0, 0],
    [0.3, -0.2, 0.1],
    [-0.1, 0.2, 0.2],
  ] as const) {
    const spot = { x: 0, y: 0, away: 0 };
    project(camera, x, y, z, spot);
    const at = new Vector3(x, y, z).project(theirs);
    expect(spot.x).toBeCloseTo(((at.x + 1) / 2) * width, 3);
    expect(spot.y).toBeCloseTo(((1 - at.y) / 2) * height, 3);
  }
});

test("the point under the pointer is found, the one in front of two, and hidden ones never", () => {
  const camera = newCamera();
  aim(camera, { yaw: 0, pitch: 0, zoom: 1 }, 600, 600);
  // Two in the middle, one behind the other, and one at the right.
  const positions = Float32Array.of(0, 0, -0.5, 0, 0, 0.5, 0.8, 0, 0);
  const all = Uint8Array.of(1, 1, 1);
  expect(pick(camera, positions, all, 300, 300, 10)).toBe(1);
  expect(pick(camera, positions, Uint8Array.of(1, 0, 1), 300, 300, 10)).toBe(0);
  expect(pick(camera, positions, all, 300, 200, 10)).toBe(-1);
  const right = { x: 0, y: 0, away: 0 };
  project(camera, 0.8, 0, 0, right);
  expect(pick(camera, positions, all, right.x + 6, right.y, 10)).toBe(2);
  expect(pick(camera, positions, Uint8Array.of(0, 0, 0), 300, 300, 10)).toBe(-1);
});

test("what is behind the eye is not under the pointer", () => {
  const camera = newCamera();
  aim(camera, { yaw: 0, pitch: 0, zoom: 12 }, 600, 600);
  expect(pick(camera, Float32Array.of(0, 0, 5), Uint8Array.of(1), 300, 300, 400)).toBe(-1);
});
