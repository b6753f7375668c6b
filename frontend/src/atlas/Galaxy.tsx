/**
 * The galaxy: experts as points that can be spun, searched with the pointer and with keys.
 *
 * Frames are drawn while something moves or changes; a page at rest draws nothing.
 */
import { useId, useLayoutEffect, useMemo, useRef, useState } from "react";
import { useTranslation } from "react-i18next";
import { useNavigate } from "react-router";
import type { Atlas } from "@/core/atlas";
import { neighbour } from "@/core/atlasview";
import { newCamera, pick, project, type Spot } from "@/core/orbit";
import { cameraTarget, cameraView, setAtlasView } from "@/state/atlas";
import { announce } from "@/state/ui";
import { brainPath, ExpertCard, spoken } from "./ExpertCard";
import { Loading } from "./Loading";
import { placeLabels } from "./labels";
import { topicColour } from "./palette";
import { orbitKey, useOrbit } from "./useOrbit";
import { usePicture } from "./usePicture";

const MOUSE_REACH = 9;
const FINGER_REACH = 22;
const CARD = { width: 224, height: 190, gap: 14 };

interface GalaxyProps {
  atlas: Atlas;
  shown: Uint8Array;
  selected: number;
  /** The graphics card has taken the picture away, or given it back. */
  onLost: (lost: boolean) => void;
}

export function Galaxy({ atlas, shown, selected, onLost }: GalaxyProps) {
  const { t, i18n } = useTranslation();
  const go = useNavigate();
  const hint = useId();
  const place = useRef<HTMLDivElement>(null);
  const ground = useRef<HTMLDivElement>(null);
  const card = useRef<HTMLDivElement>(null);
  const ring = useRef<HTMLDivElement>(null);
  const labels = useRef<(HTMLElement | null)[]>([]);
  const camera = useMemo(newCamera, []);
  const [hovered, setHovered] = useState(-1);
  const active = hovered >= 0 ? hovered : selected;

  const select = (at: number) => setAtlasView({ selected: at });
  const at = (spot: { x: number; y: number }, reach: number) =>
    pick(camera, atlas.positions, shown, spot.x, spot.y, reach);

  const follow = () => placeMark(camera, atlas, active, ring.current, card.current);
  const { redraw, drawn } = usePicture({
    place: ground,
    atlas,
    shown,
    view: cameraView,
    target: cameraTarget,
    camera,
    onStep() {
      placeLabels(atlas, camera, labels.current);
      follow();
    },
    onLost,
  });
  // The card does not wait for the picture.
  useLayoutEffect(follow);

  useOrbit(place, cameraTarget, {
    moved: redraw,
    hover: (spot) => setHovered(spot ? at(spot, MOUSE_REACH) : -1),
    click(spot, touch) {
      const found = at(spot, touch ? FINGER_REACH : MOUSE_REACH);
      select(found);
      if (found >= 0 && !touch) go(brainPath(atlas, found));
    },
  });

  return (
    <div
      ref={place}
      role="application"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: an application takes keys
      tabIndex={0}
      aria-label={t("atlas.galaxy")}
      aria-describedby={hint}
      className="absolute inset-0 cursor-grab touch-none select-none overflow-hidden bg-[radial-gradient(circle,var(--surface-2),var(--surface-0)_75%)] focus-visible:outline-offset-[-2px] active:cursor-grabbing"
      onKeyDown={(event) => {
        if (event.target !== event.currentTarget) return;
        const step = { PageDown: 1, PageUp: -1 }[event.key] as 1 | -1 | undefined;
        if (step) {
          const next = neighbour(shown, selected, step);
          select(next);
          if (next >= 0) announce(spoken(atlas, next, t, i18n.language));
        } else if (event.key === "Enter" && selected >= 0) {
          go(brainPath(atlas, selected));
        } else if (event.key === "Escape" && selected >= 0) {
          select(-1);
        } else if (orbitKey(event, cameraTarget)) {
          redraw();
        } else {
          return;
        }
        event.preventDefault();
      }}
    >
      <p id={hint} className="sr-only">
        {t("atlas.keys")}
      </p>
      <div ref={ground} aria-busy={!drawn} className="absolute inset-0" />
      {!drawn && <Loading />}
      <div aria-hidden="true" className="pointer-events-none absolute inset-0 text-xs">
        {atlas.topics.map((name, topic) => (
          <span
            key={name}
            ref={(element) => {
              labels.current[topic] = element;
            }}
            className="invisible absolute top-0 left-0 flex items-center gap-1.5 whitespace-nowrap rounded-full bg-[color-mix(in_srgb,var(--surface-1)_78%,transparent)] px-2 py-px"
          >
            <span
              className="size-2 rounded-full"
              style={{ background: topicColour(atlas, topic) }}
            />
            {name}
          </span>
        ))}
        <div
          ref={ring}
          hidden
          data-testid="ring"
          className="absolute -top-2 -left-2 size-4 rounded-full border-2 border-text-1"
        />
      </div>
      <div ref={card} hidden className="pointer-events-none absolute top-0 left-0">
        {active >= 0 && (
          <div data-over className={active === hovered ? "" : "pointer-events-auto"}>
            <ExpertCard atlas={atlas} at={active} fixed={active !== hovered} />
          </div>
        )}
      </div>
    </div>
  );
}

const spot: Spot = { x: 0, y: 0, away: 0 };

/** Keeps the ring on the expert, and its card beside it inside the picture. */
function placeMark(
  camera: ReturnType<typeof newCamera>,
  { positions }: Atlas,
  at: number,
  ring: HTMLElement | null,
  card: HTMLElement | null,
): void {
  if (!ring || !card) return;
  if (at >= 0) {
    const [x = 0, y = 0, z = 0] = positions.subarray(at * 3, at * 3 + 3);
    project(camera, x, y, z, spot);
  }
  const visible = at >= 0 && spot.away > 0.05;
  ring.hidden = !visible;
  card.hidden = !visible;
  if (!visible) return;
  ring.style.transform = `translate(${spot.x}px, ${spot.y}px)`;
  const right = spot.x + CARD.gap + CARD.width < camera.width;
  const x = right ? spot.x + CARD.gap : spot.x - CARD.gap - CARD.width;
  const top = Math.max(8, Math.min(spot.y - 24, camera.height - CARD.height - 8));
  const left = Math.max(8, Math.min(x, camera.width - CARD.width - 8));
  card.style.transform = `translate(${left}px, ${top}px)`;
}
