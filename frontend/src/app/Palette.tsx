/** Ctrl-K: every page, every action and every chat, by typing a few letters of it. */
import { useQueryClient } from "@tanstack/react-query";
import { clsx } from "clsx";
import { Command, MessageSquare } from "lucide-react";
import { type KeyboardEvent, useState } from "react";
import { useTranslation } from "react-i18next";
import { useLocation, useNavigate } from "react-router";
import type { ChatSummary } from "@/core/types";
import { keys } from "@/state/queries";
import { openSheet, useUi } from "@/state/ui";
import { Kbd } from "@/ui/Kbd";
import { Sheet } from "@/ui/Sheet";
import { PAGES } from "./pages";
import { SHORTCUTS } from "./shortcuts";

interface Entry {
  id: string;
  label: string;
  keys?: string;
  chat?: boolean;
  run: () => void;
}

const MOST = 12;

export function Palette() {
  const { t } = useTranslation();
  const open = useUi((state) => state.sheet === "palette");
  return (
    <Sheet open={open} onClose={() => openSheet(null)} title={t("palette.title")}>
      <Search />
    </Sheet>
  );
}

function Search() {
  const { t } = useTranslation();
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  const entries = useEntries();
  const found = entries.filter(({ label }) => fits(label, words)).slice(0, MOST);
  const marked = Math.min(at, found.length - 1);

  function run(entry: Entry | undefined): void {
    if (!entry) return;
    openSheet(null);
    entry.run();
  }

  function onKeyDown(event: KeyboardEvent): void {
    if (event.nativeEvent.isComposing) return;
    if (event.key === "ArrowDown") setAt(Math.min(marked + 1, found.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(marked - 1, 0));
    else if (event.key === "Enter") run(found[marked]);
    else return;
    event.preventDefault();
  }

  return (
    <div className="flex flex-col gap-2">
      <input
        // biome-ignore lint/a11y/noAutofocus: the palette was opened to type into it
        autoFocus
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={found[marked] ? `palette-${marked}` : undefined}
        aria-label={t("palette.label")}
        placeholder={t("palette.label")}
        value={words}
        onChange={(event) => {
          setWords(event.target.value);
          setAt(0);
        }}
        onKeyDown={onKeyDown}
        className="field h-10"
      />
      <div id="palette-list" role="listbox" aria-label={t("palette.title")}>
        {found.map((entry, index) => {
          const Icon = entry.chat ? MessageSquare : Command;
          return (
            <div
              key={entry.id}
              id={`palette-${index}`}
              role="option"
              tabIndex={-1}
              aria-selected={index === marked}
              onMouseMove={() => setAt(index)}
              onClick={() => run(entry)}
              onKeyDown={onKeyDown}
              className={clsx(
                "flex h-9 cursor-pointer items-center gap-2.5 rounded-sm px-2",
                index === marked && "bg-surface-2",
              )}
            >
              <Icon size={15} aria-hidden="true" className="shrink-0 text-text-3" />
              <span className="min-w-0 grow truncate">{entry.label}</span>
              {entry.keys && <Kbd keys={entry.keys} />}
            </div>
          );
        })}
        {found.length === 0 && <p className="p-2 text-text-3">{t("palette.nothing")}</p>}
      </div>
    </div>
  );
}

function useEntries(): Entry[] {
  const { t } = useTranslation();
  const navigate = useNavigate();
  const { pathname } = useLocation();
  const chatId = /^\/chat\/([^/]+)/.exec(pathname)?.[1] ?? null;
  const go = (path: string) => void navigate(path);
  const client = useQueryClient();
  const cached = client.getQueryData<{ chats: ChatSummary[] }>(keys.chats);
  return [
    ...SHORTCUTS.filter(({ name }) => name !== "palette").map(
      ({ name, keys: pressing, run }): Entry => ({
        id: name,
        label: t(`shortcuts.${name}`),
        keys: pressing,
        // Once the palette is gone and the focus is back.
        run: () => void setTimeout(() => run({ chatId, go })),
      }),
    ),
    ...PAGES.map(
      ({ name, path }): Entry => ({
        id: path,
        label: t(`nav.${name}`),
        run: () => go(path),
      }),
    ),
    { id: "/welcome", label: t("first.title"), run: () => go("/welcome") },
    ...(cached?.chats ?? []).map(
      ({ id, title }): Entry => ({
        id,
        label: title || t("chat.untitled"),
        chat: true,
        run: () => go(`/chat/${id}`),
      }),
    ),
  ];
}

/** Whether each word occurs in the label. */
function fits(label: string, words: string): boolean {
  const text = label.toLowerCase();
  return words
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}
