/** A tier with its colour. */
import { useTranslation } from "react-i18next";
import type { TierName as Tier } from "@/core/expertmap";

export function TierName({ tier }: { tier: Tier }) {
  const { t } = useTranslation();
  return (
    <span className="inline-flex items-center gap-1.5 whitespace-nowrap">
      <TierDot tier={tier} />
      {t(`tier.${tier}`)}
    </span>
  );
}

/** The colour that the tier has in the picture, on the picture's ground. */
export function TierDot({ tier }: { tier: Tier }) {
  return (
    <span
      aria-hidden="true"
      className="inline-block size-3 shrink-0 rounded-[3px] border-2 border-[var(--cortex-ground)]"
      style={{ background: `var(--cortex-${tier})` }}
    />
  );
}
