/**
 * What a turn is doing right now: waiting for its place, reading the prompt with progress and time
 * left, thinking, writing with a counter that flashes with each token.
 */
import { useEffect, useState } from "react";
import { useTranslation } from "react-i18next";
import { count, duration, percent, rate } from "@/core/format";
import { steadyRate } from "@/core/pace";
import { useTalkedTo } from "@/state/telemetry";
import type { LiveTurn } from "@/state/turns";

export function LiveStatus({ turn }: { turn: LiveTurn }) {
  const { t } = useTranslation();
  const now = useClock();
  if (turn.phase === "resting" && turn.rest) {
    const seconds = Math.max(0, Math.ceil((turn.rest.until - Date.now()) / 1000));
    return (
      <Line>
        <span>{turn.rest.failure.message}</span>
        <span>{t("live.retry", { count: seconds })}</span>
      </Line>
    );
  }
  if (turn.phase === "waiting") return <Waiting turn={turn} now={now} />;
  if (turn.phase === "reading") return <Reading turn={turn} now={now} />;
  return <Counter turn={turn} now={now} />;
}

function Waiting({ turn, now }: { turn: LiveTurn; now: number }) {
  const { t, i18n } = useTranslation();
  const state = useTalkedTo((all) => all);
  const loading = state !== null && state.engine.state !== "ready";
  const queued = state?.scheduler.queued ?? 0;
  const words = loading
    ? t("live.loading")
    : queued > 0
      ? t("live.queued", { count: queued })
      : t("live.waiting");
  const opening = state?.engine.loading ?? null;
  return (
    <Line>
      <span>{words}</span>
      {opening && opening.bytes_read < opening.bytes_total && (
        <span>{percent(opening.bytes_read / opening.bytes_total)}</span>
      )}
      <Since ms={now - turn.sentAt} language={i18n.language} />
    </Line>
  );
}

function Reading({ turn, now }: { turn: LiveTurn; now: number }) {
  const { t, i18n } = useTranslation();
  const language = i18n.language;
  const request = useTalkedTo((state) => state.requests.find(({ id }) => id === turn.job) ?? null);
  if (!request || request.prompt_tokens === 0) {
    return (
      <Line>
        <span>{t("live.reading")}</span>
        <Since ms={now - turn.sentAt} language={language} />
      </Line>
    );
  }
  const share = Math.min(1, request.prompt_fraction);
  return (
    <div className="flex flex-col gap-1.5">
      <Line>
        <span>
          {t("live.readingOf", {
            done: count(request.prompt_tokens_done, language),
            total: count(request.prompt_tokens, language),
          })}
        </span>
        <span>{percent(share)}</span>
        {request.eta_seconds !== null && (
          <span>{t("live.left", { time: duration(request.eta_seconds * 1000, language) })}</span>
        )}
      </Line>
      <div
        role="progressbar"
        aria-label={t("live.reading")}
        aria-valuenow={Math.round(share * 100)}
        className="h-1 w-full max-w-sm overflow-hidden rounded-full bg-surface-3"
      >
        <div className="gorget h-full rounded-full" style={{ width: `${share * 100}%` }} />
      </div>
    </div>
  );
}

function Counter({ turn, now }: { turn: LiveTurn; now: number }) {
  const { t, i18n } = useTranslation();
  const speed = turn.steady && steadyRate(turn.steady, now);
  return (
    <Line>
      <span key={turn.pieces} className="flash font-medium text-text-1">
        {t("live.tokens", { count: turn.pieces, number: count(turn.pieces, i18n.language) })}
      </span>
      {speed !== null && <span>{rate(speed, i18n.language)} tok/s</span>}
      <Since ms={now - turn.sentAt} language={i18n.language} />
    </Line>
  );
}

function Line({ children }: { children: React.ReactNode }) {
  return (
    <p className="figures flex flex-wrap items-center gap-x-3 gap-y-0.5 text-text-2 text-xs">
      <span aria-hidden="true" className="gorget inline-block size-2 rounded-full" />
      {children}
    </p>
  );
}

function Since({ ms, language }: { ms: number; language: string }) {
  return ms < 1500 ? null : <span className="text-text-3">{duration(ms, language)}</span>;
}

/** The time, a few times a second. */
function useClock(): number {
  const [now, setNow] = useState(() => performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 250);
    return () => clearInterval(timer);
  }, []);
  return now;
}
