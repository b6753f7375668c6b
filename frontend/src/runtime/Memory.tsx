/** How the memory budget was shared out. */
import { useTranslation } from "react-i18next";
import type { LiveState } from "@/api/livestate";
import { bytes } from "@/core/format";
import { hatched, Row, Section, type Share, Shares } from "./Section";

const PARTS = [
  { name: "weights", background: "var(--accent)" },
  { name: "experts", background: hatched("var(--tier-ram)", 4) },
  { name: "kv", background: hatched("var(--tier-vram)", 5) },
  { name: "scratch", background: "var(--tier-disk)" },
  { name: "program", background: "var(--line-strong)" },
] as const;

export function Memory({ engine }: { engine: LiveState["engine"] }) {
  const { t, i18n } = useTranslation();
  const { memory } = engine;
  if (!memory) return null;
  const size = (value: number) => bytes(value, i18n.language);
  const number = (name: string) => (typeof memory[name] === "number" ? memory[name] : 0);
  const parts = PARTS.map(
    ({ name, background }): Share => ({
      name: t(`memory.${name}`),
      value: number(name),
      background,
      text: size(number(name)),
    }),
  ).filter((part) => part.value > 0);
  return (
    <Section title={t("memory.title", { budget: size(number("budget")) })}>
      <Shares parts={parts} />
      {engine.rss_bytes !== null && <Row name={t("memory.held")}>{size(engine.rss_bytes)}</Row>}
    </Section>
  );
}
