/** Requests: those that run, those that wait, and what became of the others. */
import { useTranslation } from "react-i18next";
import type { LiveState } from "@/api/livestate";
import { count, percent } from "@/core/format";
import { Gauge, Row, Section } from "./Section";

interface QueueProps {
  scheduler: LiveState["scheduler"];
  requests: LiveState["requests"];
}

export function Queue({ scheduler, requests }: QueueProps) {
  const { t, i18n } = useTranslation();
  const number = (value: number) => count(value, i18n.language);
  const unhappy = [
    ["cancelled", scheduler.cancelled],
    ["rejected", scheduler.rejected],
    ["timedOut", scheduler.timed_out],
    ["failedRequests", scheduler.failed],
  ] as const;
  return (
    <Section title={t("runtime.queue")}>
      <Row name={t("runtime.active")}>
        {number(scheduler.active)} / {number(scheduler.parallel)}
      </Row>
      <Row name={t("runtime.queued")}>
        {number(scheduler.queued)} / {number(scheduler.max_queue)}
      </Row>
      <Row name={t("runtime.completed")}>{number(scheduler.completed)}</Row>
      {unhappy
        .filter(([, value]) => value > 0)
        .map(([name, value]) => (
          <Row key={name} name={t(`runtime.${name}`)}>
            {number(value)}
          </Row>
        ))}
      {requests.map((request) => (
        <div key={request.id} className="mt-1.5">
          <Row name={t(`phase.${request.phase}`)}>
            {request.phase === "prefill"
              ? `${number(request.prompt_tokens_done)} / ${number(request.prompt_tokens)} · ${percent(request.prompt_fraction)}`
              : t("live.tokens", {
                  count: request.generated_tokens,
                  number: number(request.generated_tokens),
                })}
          </Row>
          {request.phase === "prefill" && (
            <Gauge label={t("phase.prefill")} share={request.prompt_fraction} />
          )}
        </div>
      ))}
    </Section>
  );
}
