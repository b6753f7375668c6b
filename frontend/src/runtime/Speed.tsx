/** Tokens per second now, and over the last minutes. */
import { useTranslation } from "react-i18next";
import type { LiveState, Point } from "@/api/livestate";
import { rate } from "@/core/format";
import { Row, Section } from "./Section";

const WIDTH = 240;
const HEIGHT = 44;

interface SpeedProps {
  speed: LiveState["speed"];
  trend: readonly Point[];
}

export function Speed({ speed, trend }: SpeedProps) {
  const { t, i18n } = useTranslation();
  const now = speed.decode_tokens_per_second || null;
  const shown = now ?? speed.decode_average;
  const average = speed.prefill_tokens_per_second || speed.prefill_average;
  return (
    <Section title={t("runtime.speed")}>
      <div className="flex items-baseline gap-2">
        <span className="font-semibold text-2xl tracking-tight">
          {shown === null ? "–" : rate(shown, i18n.language)}
        </span>
        <span className="text-text-2 text-xs">
          tok/s {now === null && shown !== null && t("runtime.average")}
        </span>
      </div>
      <Trend points={trend} label={t("runtime.trend")} />
      {average !== null && (
        <Row name={t("runtime.reading")}>{rate(average, i18n.language)} tok/s</Row>
      )}
    </Section>
  );
}

function Trend({ points, label }: { points: readonly Point[]; label: string }) {
  if (points.length < 2) return null;
  const values = points.map((point) => point.decode_tokens_per_second);
  const most = Math.max(...values, 1);
  const step = WIDTH / (points.length - 1);
  const line = values.map(
    (value, at) => `${at * step},${HEIGHT - 2 - (value / most) * (HEIGHT - 4)}`,
  );
  const area = `M0,${HEIGHT} L${line.join(" L")} L${WIDTH},${HEIGHT} Z`;
  return (
    <svg
      role="img"
      aria-label={label}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      className="my-2 h-11 w-full"
    >
      <path d={area} fill="var(--accent-soft)" />
      <polyline
        points={line.join(" ")}
        fill="none"
        stroke="var(--accent)"
        strokeWidth="1.500"
        vectorEffect="non-scaling-stroke"
      />
    </svg>
  );
}
