/** Beside the galaxy: what is shown, how to read it, and how it was measured. */
import { clsx } from "clsx";
import { type ReactNode, useMemo } from "react";
import { useTranslation } from "react-i18next";
import type { Atlas } from "@/core/atlas";
import { countTopics, type Kind } from "@/core/atlasview";
import { count, percent, when } from "@/core/format";
import { COLOURS } from "@/core/galaxy";
import { setFilter, toggleTopic, useAtlasView } from "@/state/atlas";
import { Button } from "@/ui/Button";
import { Segments } from "@/ui/Segments";
import { topicColour } from "./palette";

export function AtlasLegend({ atlas }: { atlas: Atlas }) {
  const { t, i18n } = useTranslation();
  const { topics, kind } = useAtlasView(({ filter }) => filter);
  const counts = useMemo(() => countTopics(atlas), [atlas]);
  return (
    <div className="flex flex-col gap-5 text-xs">
      <Part title={t("atlas.kinds")}>
        <Segments<Kind>
          label={t("atlas.kinds")}
          value={kind}
          options={[
            { value: "all", label: t("atlas.all") },
            { value: "specialists", label: t("atlas.specialists") },
            { value: "generalists", label: t("atlas.generalists") },
          ]}
          onChange={(next) => setFilter({ kind: next })}
        />
      </Part>
      <Part
        title={t("atlas.topics")}
        action={
          topics.length > 0 && (
            <Button small tone="quiet" onClick={() => setFilter({ topics: [] })}>
              {t("atlas.allTopics")}
            </Button>
          )
        }
      >
        <ul className="-mx-2">
          {counts.map(({ topic, name, experts, specialists }) => {
            const chosen = topics.includes(name);
            const shown =
              kind === "all"
                ? experts
                : kind === "specialists"
                  ? specialists
                  : experts - specialists;
            return (
              <li key={name}>
                <button
                  type="button"
                  aria-pressed={chosen}
                  onClick={() => toggleTopic(name)}
                  className={clsx(
                    "flex w-full items-center gap-2 rounded-sm px-2 py-1 text-left hover:bg-surface-2",
                    chosen && "bg-accent-soft font-medium",
                  )}
                >
                  <span
                    aria-hidden="true"
                    className={clsx(
                      "size-3 shrink-0 rounded-full",
                      topics.length > 0 && !chosen && "opacity-35",
                    )}
                    style={{ background: topicColour(atlas, topic) }}
                  />
                  <span className="min-w-0 grow truncate">{name}</span>
                  <span className="figures text-text-2">{count(shown, i18n.language)}</span>
                </button>
              </li>
            );
          })}
        </ul>
      </Part>
      <Part title={t("atlas.reading")}>
        <p className="text-text-2 leading-relaxed">
          {t("atlas.readingText")}
          {atlas.topics.length > COLOURS && ` ${t("atlas.coloursRepeat")}`}
        </p>
      </Part>
      <Measured atlas={atlas} />
    </div>
  );
}

function Part({
  title,
  action,
  children,
}: {
  title: string;
  action?: ReactNode;
  children: ReactNode;
}) {
  return (
    <section>
      <div className="mb-2 flex min-h-5 items-center justify-between gap-2">
        <h2 className="eyebrow">{title}</h2>
        {action}
      </div>
      {children}
    </section>
  );
}

/** What was asked, and whether the outcome is more than chance. */
function Measured({ atlas }: { atlas: Atlas }) {
  const { t, i18n } = useTranslation();
  const { measurement } = atlas;
  if (!measurement) return null;
  const language = i18n.language;
  const bits = (value: number) => value.toLocaleString(language, { maximumFractionDigits: 3 });
  const rows: [string, string][] = [
    [t("atlas.when"), when(measurement.measured_at_ms, Date.now(), language)],
    [t("atlas.prompts"), count(measurement.prompts, language)],
    [t("atlas.tokens"), count(measurement.tokens, language)],
    [t("atlas.leftOut"), count(measurement.left_out, language)],
    [
      t("atlas.information"),
      t("atlas.againstChance", {
        value: t("atlas.bits", { bits: bits(measurement.mutual_information_bits) }),
        chance: bits(measurement.chance_bits),
      }),
    ],
  ];
  if (measurement.prediction > 0) {
    const value = percent(measurement.prediction);
    const chance = percent(measurement.prediction_chance);
    rows.push([t("atlas.predicted"), t("atlas.againstChance", { value, chance })]);
  }
  return (
    <Part title={t("atlas.measured")}>
      <dl className="figures space-y-1.5">
        {rows.map(([name, value]) => (
          <div key={name} className="flex flex-wrap items-baseline justify-between gap-x-3">
            <dt className="text-text-2">{name}</dt>
            <dd className="ml-auto text-right">{value}</dd>
          </div>
        ))}
      </dl>
    </Part>
  );
}
