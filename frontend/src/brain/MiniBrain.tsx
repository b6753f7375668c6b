/** The brain in small, beside the chat: it flickers while the model thinks, and leads to the large one. */
import { BrainCircuit } from "lucide-react";
import { useMemo, useState } from "react";
import { useTranslation } from "react-i18next";
import { Link } from "react-router";
import { type Layout, paletteOf } from "@/core/cortex";
import { useExperts } from "@/state/experts";
import { usePrefs } from "@/state/prefs";
import { useTalkedTo } from "@/state/telemetry";
import { useRatio, useSize, useStill } from "@/ui/screen";
import { useColours } from "./looks";
import type { View } from "./painter";
import { usePainter } from "./usePainter";

const PER_SECOND = 5;
const PER_SECOND_STILL = 1;

/** Nothing where the model that is talked to has no experts, or nobody tells of them. */
export function MiniBrain({ className }: { className?: string }) {
  const { t } = useTranslation();
  const wanted = usePrefs((prefs) => prefs.miniBrain);
  const experts = useTalkedTo((state) => state.experts.rows > 0) ?? false;
  const quiet = useTalkedTo(({ turn, requests }) => turn === null && requests.length === 0);
  if (!wanted || !experts) return null;
  return (
    <Link to="/brain" aria-label={t("brain.open")} title={t("brain.open")} className={className}>
      {quiet ? <Quiet /> : <Picture />}
    </Link>
  );
}

/** Before the first word the picture would be a dark patch. */
function Quiet() {
  return (
    <span className="flex size-full items-end justify-end text-text-3 transition-colors hover:text-accent">
      <span className="grid h-7 w-9 place-items-center rounded-[4px] border border-line">
        <BrainCircuit size={16} aria-hidden="true" />
      </span>
    </span>
  );
}

function Picture() {
  const [room, setRoom] = useState<HTMLSpanElement | null>(null);
  const [canvas, setCanvas] = useState<HTMLCanvasElement | null>(null);
  const colours = useColours();
  const still = useStill();
  const ratio = useRatio();
  const size = useSize(room);
  const rows = useExperts(({ map }) => map?.rows ?? 0);
  const cols = useExperts(({ map }) => map?.cols ?? 0);
  const view = useMemo((): View | null => {
    if (!size || rows === 0) return null;
    const layout: Layout = {
      rows,
      cols,
      turned: false,
      across: cols,
      down: rows,
      cellWidthPx: 1,
      cellHeightPx: 1,
      gapPx: 0,
      ratio,
    };
    return {
      layout,
      palette: paletteOf(colours, null),
      ground: colours.ground,
      span: "all",
      still,
      boxPx: { width: Math.round(size.width * ratio), height: Math.round(size.height * ratio) },
    };
  }, [size, rows, cols, ratio, colours, still]);
  usePainter(canvas, view, still ? PER_SECOND_STILL : PER_SECOND);
  return (
    <span
      ref={setRoom}
      className="block size-full overflow-hidden rounded-[4px] bg-[var(--cortex-ground)]"
    >
      <canvas ref={setCanvas} className="block size-full" />
    </span>
  );
}
