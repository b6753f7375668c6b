/** What a model thought before it answered: open while it thinks, unless the user says otherwise. */
import { Brain, ChevronRight } from "lucide-react";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { duration } from "@/core/format";
import { Markdown } from "./Markdown";

interface ReasoningProps {
  text: string;
  /** The model is thinking right now. */
  live: boolean;
  ms: number | undefined;
}

export function Reasoning({ text, live, ms }: ReasoningProps) {
  const { t, i18n } = useTranslation();
  const [chosen, setChosen] = useState<boolean | null>(null);
  const open = chosen ?? live;
  const label = live
    ? t("chat.thinking")
    : ms !== undefined && ms >= 1000
      ? t("chat.thoughtFor", { time: duration(ms, i18n.language) })
      : t("chat.thought");
  return (
    <section className="mb-3 rounded-md border border-line bg-surface-0/60">
      <button
        type="button"
        aria-expanded={open}
        onClick={() => setChosen(!open)}
        className="flex w-full items-center gap-2 rounded-md px-3 py-2 text-left text-text-2 hover:text-text-1"
      >
        <Brain size={15} aria-hidden="true" className={live ? "text-ruby" : "text-text-3"} />
        <span className="grow text-xs">{label}</span>
        <ChevronRight
          size={15}
          aria-hidden="true"
          className={open ? "rotate-90 transition-transform" : "transition-transform"}
        />
      </button>
      {open && (
        <div className="max-h-96 overflow-y-auto border-line border-t px-3 py-2 text-text-2 [&_.prose]:text-[0.8125rem]">
          <Markdown text={text} live={live} />
        </div>
      )}
    </section>
  );
}
