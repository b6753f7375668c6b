/** What the colours say and how many experts each has; a click lets the other tiers step back. */
import { clsx } from "clsx";
import { useTranslation } from "react-i18next";
import { type ExpertMap, TIERS, totalsOf } from "@/core/expertmap";
import { count } from "@/core/format";

interface LegendProps {
  map: ExpertMap;
  only: number | null;
  onOnly: (tier: number | null) => void;
}

/** Fastest first. */
const ORDER = [2, 1, 0, 3] as const;

export function Legend({ map, only, onOnly }: LegendProps) {
  const { t, i18n } = useTranslation();
  const { tiers, asked } = totalsOf(map);
  return (
    <div className="figures mt-2 flex flex-wrap items-center gap-x-1 gap-y-1 text-xs">
      {ORDER.map((tier) => (
        <button
          key={tier}
          type="button"
          aria-pressed={only === tier}
          title={t("brain.only", { tier: t(`tier.${TIERS[tier]}`) })}
          onClick={() => onOnly(only === tier ? null : tier)}
          className={clsx(
            "inline-flex h-7 items-center gap-1.5 rounded-sm px-2 outline-[var(--cortex-text)] hover:bg-[var(--cortex-lift)]",
            only === tier && "bg-[var(--cortex-lift)] text-[var(--cortex-flash)]",
          )}
        >
          <span
            aria-hidden="true"
            className="size-2.5 rounded-[3px]"
            style={{ background: `var(--cortex-${TIERS[tier]})` }}
          />
          {t(`tier.${TIERS[tier]}`)}
          <span>{count(tiers[tier], i18n.language)}</span>
        </button>
      ))}
      <span className="inline-flex items-center gap-1.5 px-2">
        <span aria-hidden="true" className="size-2.5 rounded-[3px] bg-[var(--cortex-flash)]" />
        {t("brain.asked", { count: asked, number: count(asked, i18n.language) })}
      </span>
      <span className="grow" />
      <span className="px-2">{t("brain.brightness")}</span>
    </div>
  );
}
