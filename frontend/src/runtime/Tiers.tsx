/** How many experts lie where, and where they were when they were asked for. */
import { useTranslation } from "react-i18next";
import type { LiveState } from "@/api/livestate";
import { bytes, count, percent } from "@/core/format";
import { expertCount } from "@/i18n/experts";
import { hatched, Row, Section, type Share, Shares } from "./Section";

const LOOKS = {
  vram: "var(--tier-vram)",
  ram: hatched("var(--tier-ram)", 4),
  disk: hatched("var(--tier-disk)", 6),
};

interface TiersProps {
  tiers: LiveState["tiers"];
  lookups: LiveState["lookups"];
}

export function Tiers({ tiers, lookups }: TiersProps) {
  const { t, i18n } = useTranslation();
  const language = i18n.language;
  const dense = tiers.experts === 0;
  const parts = tiers.tiers.map(
    (tier): Share => ({
      name: t(`tier.${tier.name}`),
      value: dense ? tier.bytes : tier.experts,
      background: LOOKS[tier.name],
      text: dense
        ? bytes(tier.bytes, language)
        : `${count(tier.experts, language)} · ${bytes(tier.bytes, language)}`,
    }),
  );
  const notes = tiers.tiers.filter((tier) => tier.note !== "");
  const { disk, ...atHand } = lookups.decode;
  const held = Object.values(atHand).reduce((sum, value) => sum + value, 0);
  return (
    <Section title={dense ? t("runtime.weights") : expertCount(t, language, tiers)}>
      <Shares parts={parts} />
      {!dense && held + disk > 0 && (
        <Row name={t("runtime.atHand")} note={t("runtime.atHandNote")}>
          {percent(held / (held + disk))}
        </Row>
      )}
      {notes.map((tier) => (
        <p key={tier.name} className="mt-1 text-text-3 text-xs">
          {tier.note}
        </p>
      ))}
    </Section>
  );
}
