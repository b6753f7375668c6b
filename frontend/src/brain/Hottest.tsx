/** The experts that were asked for most, in this turn or of all time. */
import { clsx } from "clsx";
import { useTranslation } from "react-i18next";
import { type ExpertMap, hottest, type Span } from "@/core/expertmap";
import { count, percent } from "@/core/format";
import { factsOf, useWords } from "./cell";
import { Panel } from "./Panel";
import { TierDot } from "./TierName";

const MOST = 10;

interface HottestProps {
  map: ExpertMap;
  layers: readonly number[];
  span: Span;
  marked: number | null;
  onMark: (cell: number) => void;
}

export function Hottest({ map, layers, span, marked, onMark }: HottestProps) {
  const { t, i18n } = useTranslation();
  const words = useWords();
  const cells = hottest(map, span, MOST);
  return (
    <Panel title={t(span === "all" ? "brain.hottest" : "brain.hottestTurn")}>
      {cells.length === 0 ? (
        <p className="text-text-2">{t("brain.nothingAsked")}</p>
      ) : (
        <ol className="figures -mx-2">
          {cells.map((cell) => {
            const facts = factsOf(map, layers, cell);
            return (
              <li key={cell}>
                <button
                  type="button"
                  aria-pressed={cell === marked}
                  onClick={() => onMark(cell)}
                  className={clsx(
                    "flex h-8 w-full items-center gap-2 rounded-sm px-2 text-left",
                    cell === marked ? "bg-accent-soft" : "hover:bg-surface-2",
                  )}
                >
                  <TierDot tier={facts.tier} />
                  <span className="grow">{words.name(facts)}</span>
                  <span className="text-text-2 text-xs">{words.tier(facts)}</span>
                  <span className="w-14 text-right">
                    {span === "all" ? percent(facts.heat) : count(facts.hits, i18n.language)}
                  </span>
                </button>
              </li>
            );
          })}
        </ol>
      )}
    </Panel>
  );
}
