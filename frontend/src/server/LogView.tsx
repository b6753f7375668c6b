/** The server's log: by level and words, following its end, to be copied. */
import { clsx } from "clsx";
import { Copy } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { useTranslation } from "react-i18next";
import type { LogEntry } from "@/api/server";
import { asText, LEVELS, type Level, matching } from "@/core/loglines";
import { useLog } from "@/state/server";
import { announce, notify } from "@/state/ui";
import { Button } from "@/ui/Button";
import { copyText } from "@/ui/files";
import { Part } from "@/ui/Page";
import { Segments } from "@/ui/Segments";

// More lines than anyone scrolls through; copying takes them all.
const SHOWN = 500;
const END = 24;

export function LogView() {
  const { t } = useTranslation();
  const { entries, read, problem } = useLog();
  const [level, setLevel] = useState<Level>("info");
  const [words, setWords] = useState("");
  const [follow, setFollow] = useState(true);
  const box = useRef<HTMLDivElement>(null);
  const found = matching(entries, level, words);
  const last = found.at(-1)?.seq;

  // biome-ignore lint/correctness/useExhaustiveDependencies: a new last line is what moves the end
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [follow, last]);

  async function copy(): Promise<void> {
    const done = await copyText(asText(found));
    if (done) announce(t("chat.copied"));
    else notify("problem", t("chat.notCopied"));
  }

  return (
    <Part title={t("server.log")} text={t("server.logText")}>
      <div className="flex flex-wrap items-center gap-3">
        <Segments<Level>
          label={t("server.level")}
          value={level}
          options={LEVELS.map((value) => ({ value, label: t(`server.levels.${value}`) }))}
          onChange={setLevel}
        />
        <input
          type="search"
          aria-label={t("server.searchLog")}
          placeholder={t("server.searchLog")}
          value={words}
          onChange={(event) => setWords(event.target.value)}
          className="field h-8 w-full sm:w-56"
        />
        <label className="flex items-center gap-2">
          <input
            type="checkbox"
            checked={follow}
            onChange={(event) => setFollow(event.target.checked)}
            className="accent-accent"
          />
          {t("server.follow")}
        </label>
        <Button small icon={Copy} disabled={found.length === 0} onClick={() => void copy()}>
          {t("server.copyLog")}
        </Button>
      </div>
      {problem && (
        <p className="text-warn text-xs">{t("server.logStopped", { reason: problem })}</p>
      )}
      <div
        ref={box}
        role="log"
        aria-live="off"
        aria-label={t("server.log")}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is scrolled with the keyboard
        tabIndex={0}
        onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) => {
          // Whoever scrolls up wants to read; whoever comes back to the end wants to follow.
          setFollow(scrollHeight - clientHeight - scrollTop < END);
        }}
        className="code h-80 overflow-auto rounded-md border border-line bg-surface-1 p-2"
      >
        {read && found.length === 0 && (
          <p className="p-2 text-text-2">{t(words ? "server.noLines" : "server.emptyLog")}</p>
        )}
        {found.slice(-SHOWN).map((entry) => (
          <Line key={entry.seq} entry={entry} />
        ))}
      </div>
    </Part>
  );
}

const LOOKS: Record<Level, string> = {
  debug: "text-text-3",
  info: "text-text-2",
  warning: "text-warn",
  error: "text-danger",
};

function Line({ entry }: { entry: LogEntry }) {
  const { i18n } = useTranslation();
  return (
    <div className="break-words py-px">
      <span className="text-text-3">
        {new Date(entry.at_ms).toLocaleTimeString(i18n.language)}{" "}
      </span>
      <span className={clsx("font-semibold", LOOKS[entry.level])}>{entry.level} </span>
      <span className="text-text-3">{entry.logger.replace(/^colibri\./, "")} </span>
      <span className="whitespace-pre-wrap">{entry.message}</span>
      {entry.request_id && <span className="text-text-3"> {entry.request_id}</span>}
    </div>
  );
}
