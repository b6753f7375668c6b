/** Everything that is known of one request. Its text is not: none is kept. */
import { useTranslation } from "react-i18next";
import type { SeenRequest } from "@/api/server";
import { count, duration, rate } from "@/core/format";
import { Sheet } from "@/ui/Sheet";
import { outcomeWords } from "./outcome";

interface RequestSheetProps {
  request: SeenRequest | null;
  onClose: () => void;
}

export function RequestSheet({ request, onClose }: RequestSheetProps) {
  const { t } = useTranslation();
  return (
    <Sheet
      open={request !== null}
      onClose={onClose}
      side="right"
      title={t("server.request")}
      description={t("server.noText")}
    >
      {request && <Facts request={request} />}
    </Sheet>
  );
}

function Facts({ request }: { request: SeenRequest }) {
  const { t, i18n } = useTranslation();
  const language = i18n.language;
  const number = (value: number | null) => (value === null ? null : count(value, language));
  const time = (value: number | null) => (value === null ? null : duration(value, language));
  const computed =
    request.prompt_tokens === null
      ? null
      : Math.max(request.prompt_tokens - (request.cached_tokens ?? 0), 0);
  const speed = (tokens: number | null, ms: number | null) =>
    tokens && ms ? t("server.perSecond", { rate: rate((tokens / ms) * 1000, language) }) : null;
  const facts: [string, string | null][] = [
    [t("server.fact.at"), new Date(request.at_ms).toLocaleString(language)],
    [t("server.fact.route"), `${request.method} ${request.route}`],
    [t("server.fact.outcome"), outcomeWords(request, t)],
    [t("server.fact.status"), request.status === null ? null : String(request.status)],
    [t("server.fact.stream"), t(request.stream ? "server.yes" : "server.no")],
    [t("server.fact.client"), request.client],
    [t("server.fact.agent"), request.user_agent],
    [t("server.fact.model"), request.model],
    [t("server.fact.slot"), number(request.slot)],
    [t("server.fact.prompt"), number(request.prompt_tokens)],
    [t("server.fact.cached"), number(request.cached_tokens)],
    [t("server.fact.generated"), number(request.completion_tokens)],
    [t("server.fact.most"), number(request.max_tokens)],
    [
      t("server.fact.temperature"),
      request.temperature === null ? null : String(request.temperature),
    ],
    [t("server.fact.wait"), time(request.queue_wait_ms)],
    [t("server.fact.ttft"), time(request.ttft_ms)],
    [t("server.fact.prefill"), time(request.prefill_ms)],
    [t("server.fact.prefillSpeed"), speed(computed, request.prefill_ms)],
    [t("server.fact.decode"), time(request.decode_ms)],
    [t("server.fact.decodeSpeed"), speed((request.completion_tokens ?? 0) - 1, request.decode_ms)],
    [t("server.fact.total"), time(request.total_ms)],
    [t("server.fact.id"), request.id],
  ];
  return (
    <dl className="figures grid grid-cols-[auto_minmax(0,1fr)] gap-x-4 gap-y-1.5">
      {facts.map(
        ([name, value]) =>
          value !== null &&
          value !== "" && (
            <div key={name} className="contents">
              <dt className="text-text-2">{name}</dt>
              <dd className="break-words text-right">{value}</dd>
            </div>
          ),
      )}
    </dl>
  );
}
