/** The figures of an answer: how fast, how long until the first word, how many tokens, why it ended. */
import { useTranslation } from "react-i18next";
import { count, duration, rate } from "@/core/format";
import type { Meta } from "@/core/types";

export function StatsLine({ meta }: { meta: Meta }) {
  const { t, i18n } = useTranslation();
  const { stats, finish } = meta;
  if (!stats) return meta.edited ? <Line pieces={[[t("stats.edited"), ""]]} /> : null;
  const language = i18n.language;
  const pieces: [string, string][] = [];
  if (stats.tokens_per_second !== null) {
    pieces.push([`${rate(stats.tokens_per_second, language)} tok/s`, t("stats.speedTip")]);
  }
  if (stats.ttft_ms !== null) {
    pieces.push([
      t("stats.first", { time: duration(stats.ttft_ms, language) }),
      t("stats.firstTip"),
    ]);
  }
  if (stats.completion_tokens !== null) {
    const about = stats.estimated ? "≈ " : "";
    const prompt = stats.prompt_tokens === null ? "" : `${count(stats.prompt_tokens, language)} → `;
    const completion = about + count(stats.completion_tokens, language);
    pieces.push([t("stats.tokens", { counts: prompt + completion }), t("stats.tokensTip")]);
  }
  if (stats.cached_tokens) {
    const cached = count(stats.cached_tokens, language);
    pieces.push([t("stats.cached", { count: stats.cached_tokens, cached }), t("stats.cachedTip")]);
  }
  if (stats.queue_wait_ms !== null && stats.queue_wait_ms >= 50) {
    pieces.push([
      t("stats.queued", { time: duration(stats.queue_wait_ms, language) }),
      t("stats.queuedTip"),
    ]);
  }
  if (finish) pieces.push([t(`finish.${finish}`), t("stats.finishTip")]);
  return <Line pieces={pieces} />;
}

function Line({ pieces }: { pieces: [string, string][] }) {
  return (
    <p className="figures flex flex-wrap gap-x-3 text-text-3 text-xs">
      {pieces.map(([text, tip]) => (
        <span key={tip + text} title={tip}>
          {text}
        </span>
      ))}
    </p>
  );
}
