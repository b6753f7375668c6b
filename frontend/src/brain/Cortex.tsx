/** The model as a cortex: one cell for each expert, which pointer and keys go through. */
import { type KeyboardEvent, type PointerEvent, useMemo, useState } from "react";
import { useTranslation } from "react-i18next";
import { cellAt, heightPx, layOut, moved, paletteOf, rectOf, widthPx } from "@/core/cortex";
import { type ExpertMap, hottest, type Span } from "@/core/expertmap";
import { useExperts } from "@/state/experts";
import { announce } from "@/state/ui";
import { useRatio, useSize, useStill } from "@/ui/screen";
import { factsOf, useWords } from "./cell";
import { useColours } from "./looks";
import type { View } from "./painter";
import { Tip } from "./Tip";
import { usePainter } from "./usePainter";

/** Room for the picture: as much of the window's height as leaves the figures in sight. */
const SHARE_OF_WINDOW = 0.6;
const LEAST_HEIGHT = 240;
const PER_SECOND = 10;
/** People who want no motion see a new picture this often. */
const PER_SECOND_STILL = 2;

interface CortexProps {
  map: ExpertMap;
  layers: readonly number[];
  span: Span;
  /** The tier that is looked at, by its number; null: all. */
  only: number | null;
  marked: number | null;
  onMark: (cell: number | null) => void;
}

export function Cortex({ map, layers, span, only, marked, onMark }: CortexProps) {
  const { t } = useTranslation();
  const words = useWords();
  const [room, setRoom] = useState<HTMLDivElement | null>(null);
  const [canvas, setCanvas] = useState<HTMLCanvasElement | null>(null);
  const [hovered, setHovered] = useState<number | null>(null);
  const colours = useColours();
  const still = useStill();
  const ratio = useRatio();
  const width = useSize(room)?.width;
  const window = useSize(document.documentElement)?.height ?? 0;
  const { rows, cols } = map;
  const layout = useMemo(() => {
    const height = Math.max(LEAST_HEIGHT, window * SHARE_OF_WINDOW);
    return width ? layOut(rows, cols, width, height, ratio) : null;
  }, [width, window, rows, cols, ratio]);
  const view = useMemo(
    (): View | null =>
      layout && {
        layout,
        palette: paletteOf(colours, only),
        ground: colours.ground,
        span,
        still,
      },
    [layout, colours, only, span, still],
  );
  usePainter(canvas, view, still ? PER_SECOND_STILL : PER_SECOND);

  function pointed(event: PointerEvent): number | null {
    if (!layout || !canvas) return null;
    const { left, top } = canvas.getBoundingClientRect();
    return cellAt(layout, event.clientX - left, event.clientY - top);
  }

  function onKeyDown(event: KeyboardEvent): void {
    if (!layout || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && marked !== null) {
      onMark(null);
      event.preventDefault();
      return;
    }
    // The first key goes to where there is something to see.
    const now = useExperts.getState().map ?? map;
    const start = marked ?? hottest(now, span, 1)[0] ?? 0;
    const next = moved(layout, start, event.key);
    if (next === null) return;
    event.preventDefault();
    const cell = marked === null ? start : next;
    onMark(cell);
    const facts = factsOf(now, layers, cell);
    announce(
      [words.name(facts), words.tier(facts), words.heat(facts), words.hits(facts)].join(", "),
    );
  }

  const ring = (cell: number, look: string) =>
    layout && <Ring {...rectOf(layout, cell)} look={look} />;
  return (
    <div ref={setRoom} className="grid justify-center justify-items-center overflow-x-auto p-1">
      {layout && (
        <div
          role="application"
          aria-roledescription={t("brain.cortex")}
          aria-label={t("brain.label", { rows, cols })}
          aria-describedby="cortex-keys"
          // biome-ignore lint/a11y/noNoninteractiveTabindex: keys go through the cells
          tabIndex={0}
          onKeyDown={onKeyDown}
          onPointerMove={(event) => setHovered(pointed(event))}
          onPointerLeave={() => setHovered(null)}
          onClick={(event) => onMark(pointed(event as unknown as PointerEvent))}
          className="relative cursor-crosshair rounded-[2px]"
          style={{ width: widthPx(layout) / ratio, height: heightPx(layout) / ratio }}
        >
          <canvas ref={setCanvas} className="block size-full" />
          {marked !== null && ring(marked, "outline-2 outline-[var(--cortex-flash)]")}
          {hovered !== null && ring(hovered, "outline outline-[var(--cortex-text)]")}
          {hovered !== null && hovered < rows * cols && (
            <Tip cell={hovered} layers={layers} rect={rectOf(layout, hovered)} />
          )}
        </div>
      )}
      <p className="mt-2 text-center text-xs">
        {t(layout?.turned ? "brain.axesTurned" : "brain.axes", {
          first: layers[0],
          last: layers[rows - 1],
          end: cols - 1,
        })}
      </p>
      <p id="cortex-keys" className="sr-only">
        {t("brain.keys")}
      </p>
    </div>
  );
}

interface RingProps {
  x: number;
  y: number;
  width: number;
  height: number;
  look: string;
}

function Ring({ x, y, width, height, look }: RingProps) {
  return (
    <span
      aria-hidden="true"
      className={`pointer-events-none absolute rounded-[1px] outline-offset-1 ${look}`}
      style={{ left: x, top: y, width, height }}
    />
  );
}
