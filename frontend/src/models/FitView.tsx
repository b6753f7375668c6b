/** How a model fits this machine: a verdict, its tiers, and the speed to expect. */
import { useTranslation } from "react-i18next";
import type { Fit } from "@/api/installed";
import { shares } from "@/core/fit";
import { bytes, count, rate } from "@/core/format";
import { expertCount } from "@/i18n/experts";
import { hatched, Shares } from "@/runtime/Section";
import { VerdictMark } from "@/ui/VerdictMark";

interface FitViewProps {
  fit: Fit | undefined;
  error: Error | null;
  loading: boolean;
}

export function FitView({ fit, error, loading }: FitViewProps) {
  const { t, i18n } = useTranslation();
  const language = i18n.language;
  if (error) return <p className="text-text-3 text-xs">{error.message}</p>;
  if (!fit) {
    return loading ? (
      <p aria-busy="true" className="text-text-3 text-xs">
        {t("models.measuring")}
      </p>
    ) : null;
  }
  const speed = fit.tokens_per_second;
  const { vram, ram, disk } = shares(fit.tiers, fit.resident);
  const parts = [
    { tier: "vram", value: vram, background: "var(--tier-vram)" },
    { tier: "ram", value: ram, background: hatched("var(--tier-ram)", 4) },
    { tier: "disk", value: disk, background: hatched("var(--tier-disk)", 6) },
  ] as const;
  return (
    <div className="grid gap-x-6 gap-y-3 border-line border-t pt-3 sm:grid-cols-2">
      <div>
        <VerdictMark fit={fit} />
        <dl className="figures mt-2 grid grid-cols-[auto_1fr] gap-x-3 gap-y-0.5 text-xs">
          {speed && (
            <>
              <dt className="text-text-2">{t("models.speed")}</dt>
              <dd>
                {t("models.range", {
                  low: rate(speed.low, language),
                  high: rate(speed.high, language),
                })}
              </dd>
            </>
          )}
          <dt className="text-text-2">{t("models.wouldContext")}</dt>
          <dd>{count(fit.context, language)}</dd>
          {fit.experts > 0 && (
            <>
              <dt className="text-text-2">{t("models.inMemory")}</dt>
              <dd>
                {t("experts.of", {
                  part: count(fit.experts_in_ram, language),
                  all: expertCount(t, language, fit),
                })}
              </dd>
            </>
          )}
          <dt className="text-text-2">{t("models.budget")}</dt>
          <dd>{fit.budget_bytes > 0 ? bytes(fit.budget_bytes, language) : t("models.noLimit")}</dd>
        </dl>
      </div>
      {fit.fits && (
        <div className="min-w-0">
          <Shares
            parts={parts.map(({ tier, value, background }) => ({
              name: t(`tier.${tier}`),
              value,
              background,
              text: bytes(value, language),
            }))}
          />
        </div>
      )}
      {fit.warnings.map((warning) => (
        <p key={warning} className="text-text-2 text-xs sm:col-span-2">
          {warning}
        </p>
      ))}
    </div>
  );
}
