/** The marked expert: where it lies, how wanted it is. */
import { useTranslation } from "react-i18next";
import type { ExpertMap } from "@/core/expertmap";
import { count, percent } from "@/core/format";
import { factsOf, useWords } from "./cell";
import { Panel } from "./Panel";
import { TierName } from "./TierName";
import { useTopics } from "./useTopics";

const MOST_TOPICS = 5;

interface CellDetailsProps {
  map: ExpertMap;
  layers: readonly number[];
  marked: number | null;
  /** What the address asked for and the model does not have. */
  missing: { layer: string; expert: string } | null;
}

export function CellDetails({ map, layers, marked, missing }: CellDetailsProps) {
  const { t, i18n } = useTranslation();
  const words = useWords();
  if (marked === null) {
    return (
      <Panel title={t("brain.details")}>
        <p className="text-text-2">
          {missing ? t("brain.missing", missing) : t("brain.chooseOne")}
        </p>
      </Panel>
    );
  }
  const facts = factsOf(map, layers, marked);
  const rows = [
    { name: t("brain.tier"), value: <TierName tier={facts.tier} /> },
    { name: t("brain.heat"), value: percent(facts.heat), note: t("brain.heatNote") },
    { name: t("brain.inTurn"), value: count(facts.hits, i18n.language) },
  ];
  return (
    <Panel title={t("brain.details")}>
      <p className="mb-2 font-semibold text-base">{words.name(facts)}</p>
      <dl className="figures flex flex-col gap-1.5">
        {rows.map(({ name, value, note }) => (
          <div key={name} className="flex justify-between gap-3" title={note}>
            <dt className="text-text-2">{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <TopicShares layer={facts.layer} expert={facts.expert} />
    </Panel>
  );
}

function TopicShares({ layer, expert }: { layer: number; expert: number }) {
  const { t } = useTranslation();
  const { topics, missing, waiting, problem } = useTopics(layer, expert, MOST_TOPICS);
  return (
    <div className="mt-3 border-line border-t pt-2">
      <h3 className="eyebrow mb-1.5">{t("brain.topics")}</h3>
      {topics ? (
        <>
          <ul className="figures flex flex-col gap-1">
            {topics.shares.map(({ name, share }) => (
              <li key={name} className="flex items-center gap-3">
                <span className="min-w-0 grow truncate">{name}</span>
                <span aria-hidden="true" className="h-1.5 w-24 rounded-full bg-surface-3">
                  <span
                    className="block h-full rounded-full bg-accent"
                    style={{ width: `${share * 100}%` }}
                  />
                </span>
                <span className="w-12 text-right">{percent(share)}</span>
              </li>
            ))}
          </ul>
          <p className="mt-1.5 text-text-2 text-xs">
            {t(topics.specialist ? "brain.specialist" : "brain.generalist")}
          </p>
        </>
      ) : (
        <p aria-busy={waiting} className="text-text-2 text-xs [overflow-wrap:anywhere]">
          {missing ? (
            <>
              {t("brain.noAtlas")} <code className="code">coli atlas run</code>
            </>
          ) : (
            (problem ?? t(waiting ? "atlas.loading" : "brain.notMeasured"))
          )}
        </p>
      )}
    </div>
  );
}
