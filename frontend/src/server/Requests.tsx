/** The last requests to the model, as they come: who asked, how far it is, how it ended. */
import { clsx } from "clsx";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import type { SeenRequest } from "@/api/server";
import { count, duration } from "@/core/format";
import { useRequests } from "@/state/server";
import { Part } from "@/ui/Page";
import { outcomeWords, tone } from "./outcome";
import { RequestSheet } from "./RequestSheet";

export function Requests() {
  const { t } = useTranslation();
  const { data, error } = useRequests();
  const [shown, setShown] = useState<string | null>(null);
  const requests = data?.requests ?? [];
  return (
    <Part title={t("server.requests")} text={t("server.requestsText")}>
      {error && !data && <p className="text-warn text-xs">{error.message}</p>}
      {data && requests.length === 0 && (
        <p className="rounded-md border border-line border-dashed p-6 text-center text-text-2">
          {t("server.noRequests")}
        </p>
      )}
      {requests.length > 0 && (
        <div className="max-h-96 overflow-y-auto rounded-md border border-line bg-surface-1">
          <table className="figures w-full text-left text-xs">
            <caption className="sr-only">{t("server.requests")}</caption>
            <thead className="sticky top-0 bg-surface-2 text-text-2">
              <tr>
                <Head>{t("server.col.at")}</Head>
                <Head>{t("server.col.route")}</Head>
                <Head className="hidden md:table-cell">{t("server.col.client")}</Head>
                <Head>{t("server.col.outcome")}</Head>
                <Head className="hidden text-right sm:table-cell">{t("server.col.tokens")}</Head>
                <Head className="hidden text-right md:table-cell">{t("server.col.ttft")}</Head>
                <Head className="hidden text-right sm:table-cell">{t("server.col.total")}</Head>
              </tr>
            </thead>
            <tbody>
              {requests.map((request) => (
                <Line key={request.id} request={request} onShow={() => setShown(request.id)} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      <RequestSheet
        request={requests.find(({ id }) => id === shown) ?? null}
        onClose={() => setShown(null)}
      />
    </Part>
  );
}

function Head({ className, children }: { className?: string; children: string }) {
  return (
    <th scope="col" className={clsx("px-3 py-2 font-medium", className)}>
      {children}
    </th>
  );
}

const TONES = { good: "bg-accent", busy: "bg-ruby", bad: "bg-danger", plain: "bg-text-3" };

function Line({ request, onShow }: { request: SeenRequest; onShow: () => void }) {
  const { t, i18n } = useTranslation();
  const language = i18n.language;
  const time = new Date(request.at_ms).toLocaleTimeString(language);
  const number = (value: number | null) => (value === null ? "–" : count(value, language));
  return (
    <tr className="border-line border-t hover:bg-surface-2">
      <td className="px-3 py-1.5 align-top">
        <button
          type="button"
          onClick={onShow}
          aria-label={t("server.details", { time })}
          className="text-accent underline-offset-2 hover:underline"
        >
          {time}
        </button>
      </td>
      <td className="break-all px-3 py-1.5 align-top font-mono">
        {request.route.replace(/^(\/v1)+/, "")}
      </td>
      <td className="hidden max-w-48 truncate px-3 py-1.5 align-top text-text-2 md:table-cell">
        {request.user_agent.split(" ")[0] || request.client}
      </td>
      <td className="px-3 py-1.5 align-top">
        <span className="inline-flex items-center gap-1.5">
          <span
            aria-hidden="true"
            className={clsx("size-2 shrink-0 rounded-full", TONES[tone(request)])}
          />
          {outcomeWords(request, t)}
        </span>
      </td>
      <td className="hidden whitespace-nowrap px-3 py-1.5 text-right align-top sm:table-cell">
        {number(request.prompt_tokens)} · {number(request.cached_tokens)} ·{" "}
        {number(request.completion_tokens)}
      </td>
      <td className="hidden whitespace-nowrap px-3 py-1.5 text-right align-top md:table-cell">
        {request.ttft_ms === null ? "–" : duration(request.ttft_ms, language)}
      </td>
      <td className="hidden whitespace-nowrap px-3 py-1.5 text-right align-top sm:table-cell">
        {request.total_ms === null ? "–" : duration(request.total_ms, language)}
      </td>
    </tr>
  );
}
