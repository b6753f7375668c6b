/** How full the context is, and what sending will take if that is more than a moment. */
import { clsx } from "clsx";
import { Hourglass } from "lucide-react";
import { useTranslation } from "react-i18next";
import { SLOW_SECONDS } from "@/core/estimate";
import { count, duration, percent } from "@/core/format";
import type { TurnEstimate } from "./useEstimate";

const NEARLY = 0.85;

export function ContextMeter({ estimate }: { estimate: TurnEstimate }) {
  const { t, i18n } = useTranslation();
  const { prompt, context } = estimate;
  const language = i18n.language;
  if (context === null) {
    return prompt > 0 ? (
      <span className="figures text-text-3 text-xs">
        ≈ {t("context.tokens", { count: prompt, number: count(prompt, language) })}
      </span>
    ) : null;
  }
  const share = prompt / context;
  const level = share > 1 ? "text-danger" : share > NEARLY ? "text-warn" : "text-accent";
  const label = t("context.use", {
    used: count(prompt, language),
    total: count(context, language),
  });
  return (
    <span className="figures inline-flex items-center gap-1.5 text-text-3 text-xs" title={label}>
      <svg width="16" height="16" viewBox="0 0 16 16" role="img" aria-label={label}>
        <circle cx="8" cy="8" r="6" fill="none" stroke="var(--surface-3)" strokeWidth="3" />
        <circle
          cx="8"
          cy="8"
          r="6"
          fill="none"
          strokeWidth="3"
          pathLength="100"
          strokeDasharray={`${Math.min(100, share * 100)} 100`}
          transform="rotate(-90 8 8)"
          className={clsx("stroke-current", level)}
        />
      </svg>
      <span className={share > NEARLY ? level : undefined}>{percent(share)}</span>
    </span>
  );
}

/** Told before sending: too long for the context, or slow. Nothing else. */
export function SendingHint({ estimate }: { estimate: TurnEstimate }) {
  const { t, i18n } = useTranslation();
  const language = i18n.language;
  const { prompt, context, newTokens, cachedTokens, firstSeconds, totalSeconds } = estimate;
  const number = (value: number) => count(value, language);
  if (context !== null && prompt > context) {
    return (
      <p className="px-1 pb-1.5 text-danger text-xs">
        {t("context.over", { used: number(prompt), total: number(context) })}
      </p>
    );
  }
  const slow = (firstSeconds ?? 0) > SLOW_SECONDS || (totalSeconds ?? 0) > SLOW_SECONDS;
  if (!slow || firstSeconds === null || newTokens === 0) return null;
  const time = (seconds: number) => duration(seconds * 1000, language);
  return (
    <p className="figures flex items-center gap-1.5 px-1 pb-1.5 text-text-2 text-xs">
      <Hourglass size={13} aria-hidden="true" className="shrink-0 text-warn" />
      <span>
        {totalSeconds === null
          ? t("context.slowFirst", { first: time(firstSeconds) })
          : t("context.slow", { first: time(firstSeconds), total: time(totalSeconds) })}{" "}
        {t("context.parts", { fresh: number(newTokens), cached: number(cachedTokens) })}
      </span>
    </p>
  );
}
