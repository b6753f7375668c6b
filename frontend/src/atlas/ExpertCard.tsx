/** What is known of one expert, as it stands beside its point. */
import { BrainCircuit } from "lucide-react";
import { useTranslation } from "react-i18next";
import { Link } from "react-router";
import { type Atlas, topTopics } from "@/core/atlas";
import { percent } from "@/core/format";
import { topicColour } from "./palette";

const MOST_TOPICS = 4;

interface ExpertCardProps {
  atlas: Atlas;
  at: number;
  /** Offers the way to the Brain; a card that follows the pointer cannot be reached. */
  fixed: boolean;
}

export function ExpertCard({ atlas, at, fixed }: ExpertCardProps) {
  const { t, i18n } = useTranslation();
  return (
    <div className="w-56 rounded-md border border-line bg-surface-1 p-3 text-xs shadow-float">
      <p className="font-semibold text-sm">{expertName(atlas, at, t)}</p>
      <p className="text-text-2">{kindOf(atlas, at, t)}</p>
      <ul className="figures my-2 space-y-1">
        {topTopics(atlas, at, MOST_TOPICS).map(({ topic, share }) => (
          <li key={topic} className="grid grid-cols-[1fr_3.5rem_2.4rem] items-center gap-2">
            <span className="truncate">{atlas.topics[topic]}</span>
            <span aria-hidden="true" className="h-1.5 rounded-full bg-surface-3">
              <span
                className="block h-full rounded-full"
                style={{ width: `${share * 100}%`, background: topicColour(atlas, topic) }}
              />
            </span>
            <span className="text-right text-text-2">{percent(share)}</span>
          </li>
        ))}
      </ul>
      <p className="text-text-2">{entropyOf(atlas, at, t, i18n.language)}</p>
      {fixed ? (
        <Link
          to={brainPath(atlas, at)}
          className="mt-2 inline-flex items-center gap-1.5 font-medium text-accent underline-offset-2 hover:underline"
        >
          <BrainCircuit size={14} aria-hidden="true" />
          {t("atlas.toBrain")}
        </Link>
      ) : (
        <p className="mt-2 text-text-3">{t("atlas.clickForBrain")}</p>
      )}
    </div>
  );
}

type Translate = ReturnType<typeof useTranslation>["t"];

export function brainPath(atlas: Atlas, at: number): string {
  return `/brain?layer=${atlas.layers[at]}&expert=${atlas.experts[at]}`;
}

export function expertName(atlas: Atlas, at: number, t: Translate): string {
  return t("atlas.expert", { layer: atlas.layers[at], expert: atlas.experts[at] });
}

export function kindOf(atlas: Atlas, at: number, t: Translate): string {
  if (!atlas.specialist[at]) return t("atlas.generalist");
  return t("atlas.specialistOf", { topic: atlas.topics[atlas.top[at] ?? 0] ?? "" });
}

export function entropyOf(atlas: Atlas, at: number, t: Translate, language: string): string {
  const bits = (value: number) => value.toLocaleString(language, { maximumFractionDigits: 2 });
  const most = bits(Math.log2(atlas.topics.length));
  return t("atlas.entropyOf", { bits: bits(atlas.entropy[at] ?? 0), most });
}

/** The card in one sentence, for who hears it. */
export function spoken(atlas: Atlas, at: number, t: Translate, language: string): string {
  const topic = atlas.topics[atlas.top[at] ?? 0] ?? "";
  return [
    expertName(atlas, at, t),
    kindOf(atlas, at, t),
    t("atlas.mostly", { topic, share: percent(atlas.share[at] ?? 0) }),
    entropyOf(atlas, at, t, language),
  ].join(". ");
}
