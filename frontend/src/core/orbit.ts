/**
 * The camera that circles the galaxy, and which point lies under the pointer.
 *
 * A view is two angles (radians) and a distance; the camera looks at the middle. Nothing here
 * allocates in the paths that run once a frame or with every move of the pointer.
 */
export interface View {
  /** Around the upright axis. */
  yaw: number;
  /** Above the disc; negative looks from below. */
  pitch: number;
  /** 1 shows the whole galaxy. */
  zoom: number;
}

export const HOME: Readonly<View> = { yaw: 0.5, pitch: 0.75, zoom: 1 };
const STEEPEST = 1.5;
const ZOOMS = [0.6, 12] as const;
/** Half the angle that the camera sees from top to bottom. */
export const HALF_ANGLE = (20 * Math.PI) / 180;
/** What has to fit into the picture: the disc and the names at its rim. */
const REACH = 1.12;

export function spin(view: View, yaw: number, pitch: number): void {
  view.yaw += yaw;
  view.pitch = Math.min(STEEPEST, Math.max(-STEEPEST, view.pitch + pitch));
}

/** Factors above 1 come nearer. */
export function zoom(view: View, factor: number): void {
  view.zoom = Math.min(ZOOMS[1], Math.max(ZOOMS[0], view.zoom * factor));
}

/** How far from the middle the camera stands in a picture of this shape (width / height). */
export function distanceOf(view: View, aspect: number): number {
  const half = Math.tan(HALF_ANGLE);
  return REACH / Math.min(half, half * Math.max(aspect, 0.1)) / view.zoom;
}

/** Comes nearer to where a view is to be, by the time passed; true once it is there. */
export function approach(view: View, target: View, seconds: number): boolean {
  const part = 1 - Math.exp(-seconds * 14);
  view.yaw += (target.yaw - view.yaw) * part;
  view.pitch += (target.pitch - view.pitch) * part;
  view.zoom += (target.zoom - view.zoom) * part;
  const far =
    Math.abs(target.yaw - view.yaw) +
    Math.abs(target.pitch - view.pitch) +
    Math.abs(target.zoom - view.zoom) / view.zoom;
  if (far > 0.002) return false;
  view.yaw = target.yaw;
  view.pitch = target.pitch;
  view.zoom = target.zoom;
  return true;
}

/** The camera of a picture: its place, and what turns places into pixels. Made once, moved in place. */
export interface Camera {
  x: number;
  y: number;
  z: number;
  /** Three rows of four: to the right, up, and away from the eye. */
  matrix: Float64Array;
  width: number;
  height: number;
}

export function newCamera(): Camera {
  return { x: 0, y: 0, z: 1, matrix: new Float64Array(12), width: 1, height: 1 };
}

/** Puts the camera where the view says, for a picture of this many CSS pixels. */
export function aim(camera: Camera, view: View, width: number, height: number): void {
  const distance = distanceOf(view, width / height);
  const sy = Math.sin(view.yaw);
  const cy = Math.cos(view.yaw);
  const sp = Math.sin(view.pitch);
  const cp = Math.cos(view.pitch);
  camera.x = distance * cp * sy;
  camera.y = distance * sp;
  camera.z = distance * cp * cy;
  camera.width = width;
  camera.height = height;
  const up = 1 / Math.tan(HALF_ANGLE);
  const right = (up * height) / width;
  const m = camera.matrix;
  m[0] = right * cy;
  m[2] = -right * sy;
  m[4] = -up * sp * sy;
  m[5] = up * cp;
  m[6] = -up * sp * cy;
  m[8] = -cp * sy;
  m[9] = -sp;
  m[10] = -cp * cy;
  m[11] = distance;
}

/** Where a place is in the picture: CSS pixels from the upper left, and how far from the eye. */
export interface Spot {
  x: number;
  y: number;
  away: number;
}

export function project(camera: Camera, x: number, y: number, z: number, spot: Spot): void {
  const m = camera.matrix;
  const away = row(m, 8, x, y, z);
  spot.away = away;
  spot.x = ((row(m, 0, x, y, z) / away + 1) / 2) * camera.width;
  spot.y = ((1 - row(m, 4, x, y, z) / away) / 2) * camera.height;
}

function row(m: Float64Array, at: number, x: number, y: number, z: number): number {
  return (
    (m[at] as number) * x +
    (m[at + 1] as number) * y +
    (m[at + 2] as number) * z +
    (m[at + 3] as number)
  );
}

const spot: Spot = { x: 0, y: 0, away: 0 };

/**
 * The shown point that is nearest to a place of the picture, within `reach` pixels; of two that are
 * about as near, the one in front. -1: none.
 */
export function pick(
  camera: Camera,
  positions: Float32Array,
  shown: Uint8Array,
  x: number,
  y: number,
  reach: number,
): number {
  let best = -1;
  let least = Number.POSITIVE_INFINITY;
  for (let at = 0; at < shown.length; at++) {
    if (!shown[at]) continue;
    const p = at * 3;
    project(
      camera,
      positions[p] as number,
      positions[p + 1] as number,
      positions[p + 2] as number,
      spot,
    );
    if (spot.away <= 0.05) continue;
    const dx = spot.x - x;
    const dy = spot.y - y;
    if (dx * dx + dy * dy > reach * reach) continue;
    const cost = Math.hypot(dx, dy) + 3 * spot.away;
    if (cost < least) {
      least = cost;
      best = at;
    }
  }
  return best;
}
