/** Where the time of the last turn went. */
import { useTranslation } from "react-i18next";
import type { LiveState } from "@/api/livestate";
import { duration, percent } from "@/core/format";
import { hatched, Section, type Share, Shares } from "./Section";

const PARTS = [
  { name: "disk", field: "disk_ms", background: hatched("var(--tier-disk)", 5) },
  { name: "experts", field: "experts_ms", background: "var(--accent)" },
  { name: "attention", field: "attention_ms", background: hatched("var(--tier-vram)", 4) },
  { name: "head", field: "head_ms", background: "var(--ruby)" },
  { name: "other", field: "other_ms", background: "var(--line-strong)" },
] as const;

export function TurnTime({ turn }: { turn: LiveState["turn"] }) {
  const { t, i18n } = useTranslation();
  if (!turn) return null;
  const total = turn.prefill.total_ms + turn.decode.total_ms;
  const parts = PARTS.map(({ name, field, background }): Share => {
    const value = turn.prefill[field] + turn.decode[field];
    return {
      name: t(`time.${name}`),
      value,
      background,
      text: total > 0 ? `${duration(value, i18n.language)} · ${percent(value / total)}` : "–",
    };
  });
  return (
    <Section title={t("runtime.turn", { time: duration(total, i18n.language) })}>
      <Shares parts={parts} />
    </Section>
  );
}
