/** Names of topics over the picture, at the ends of their arms, where they have room. */
import type { Atlas } from "@/core/atlas";
import { armAngle } from "@/core/galaxy";
import { type Camera, project, type Spot } from "@/core/orbit";

const RADIUS = 1.06;
/** About, of the font they have; measuring them would make the browser lay out the page. */
const LETTER_PIXELS = 6.8;
/** Around the letters: the dot, its gap, and half a line at each end. */
const EDGE_PIXELS = 32;
const LINE_PIXELS = 18;

/** Puts every label where its arm ends. Of two that would overlap the one in front is shown. */
export function placeLabels(
  atlas: Atlas,
  camera: Camera,
  labels: readonly (HTMLElement | null)[],
): void {
  const size = atlas.topics.length;
  const spots = atlas.topics.map((name, topic): Spot & { topic: number; half: number } => {
    const angle = armAngle(atlas.ring[topic] ?? 0, size, 1);
    const spot = {
      x: 0,
      y: 0,
      away: 0,
      topic,
      half: (EDGE_PIXELS + name.length * LETTER_PIXELS) / 2,
    };
    project(camera, RADIUS * Math.cos(angle), 0, RADIUS * Math.sin(angle), spot);
    return spot;
  });
  spots.sort((a, b) => a.away - b.away);
  const placed: typeof spots = [];
  for (const spot of spots) {
    const label = labels[spot.topic];
    if (!label) continue;
    // What would stand half outside moves inwards.
    const x = Math.min(camera.width - spot.half, Math.max(spot.half, spot.x));
    const inside = spot.away > 0.1 && spot.y > LINE_PIXELS && spot.y < camera.height - LINE_PIXELS;
    const free = placed.every(
      (other) =>
        Math.abs(other.y - spot.y) > LINE_PIXELS || Math.abs(other.x - x) > other.half + spot.half,
    );
    const show = inside && free && Math.abs(x - spot.x) < spot.half;
    label.style.visibility = show ? "visible" : "hidden";
    if (!show) continue;
    spot.x = x;
    placed.push(spot);
    label.style.transform = `translate(${x.toFixed(1)}px, ${spot.y.toFixed(1)}px) translate(-50%, -50%)`;
  }
}
