/** Above a chat: its title, the model that answers, and what can be done with the whole. */
import {
  Activity,
  Download,
  Ellipsis,
  FileText,
  Menu as MenuIcon,
  Pin,
  PinOff,
} from "lucide-react";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { exportJson, exportMarkdown, fileName } from "@/core/exchange";
import { listOf, pathTo } from "@/core/tree";
import type { Chat } from "@/core/types";
import { saveText } from "@/desktop/saveText";
import { changeChat, findChat, useChats } from "@/state/chats";
import { setPrefs, usePrefs } from "@/state/prefs";
import { openSheet } from "@/state/ui";
import { IconButton } from "@/ui/Button";
import { Menu } from "@/ui/Menu";
import { ModelPicker } from "./ModelPicker";
import { TitleField } from "./TitleField";

export function ChatHeader({ chat }: { chat: Chat | null }) {
  const { t } = useTranslation();
  const unsaved = useChats((state) => (chat ? state.unsaved[chat.id] : undefined));
  const runtimeOpen = usePrefs((prefs) => prefs.runtimeOpen);
  return (
    <header className="flex h-12 shrink-0 items-center gap-1 border-line border-b px-2 sm:px-3">
      <IconButton
        icon={MenuIcon}
        label={t("nav.menu")}
        className="lg:hidden"
        onClick={() => openSheet("sidebar")}
      />
      <div className="flex min-w-0 grow items-center gap-2">
        {chat ? <Title key={chat.id} chat={chat} /> : null}
        {unsaved !== undefined && (
          <span
            title={unsaved}
            className="shrink-0 rounded-full bg-warn-soft px-2 py-0.5 text-warn text-xs"
          >
            {t("chat.unsaved")}
          </span>
        )}
      </div>
      <ModelPicker />
      {chat && <ChatMenu chat={chat} />}
      <IconButton
        icon={Activity}
        label={t("runtime.toggle")}
        aria-pressed={runtimeOpen}
        active={runtimeOpen}
        className="max-xl:hidden"
        onClick={() => setPrefs({ runtimeOpen: !runtimeOpen })}
      />
      <IconButton
        icon={Activity}
        label={t("runtime.toggle")}
        className="xl:hidden"
        onClick={() => openSheet("runtime")}
      />
    </header>
  );
}

/** The title; a click makes it a field. */
function Title({ chat }: { chat: Chat }) {
  const { t } = useTranslation();
  const [editing, setEditing] = useState(false);
  if (!editing) {
    return (
      <h1 className="min-w-0">
        <button
          type="button"
          title={t("chat.rename")}
          onClick={() => setEditing(true)}
          className="block max-w-full truncate rounded-sm px-2 py-1 font-semibold hover:bg-surface-2"
        >
          {chat.title || t("chat.untitled")}
        </button>
      </h1>
    );
  }
  return (
    <TitleField
      chat={chat}
      onClose={() => setEditing(false)}
      className="field max-w-96 font-semibold"
    />
  );
}

function ChatMenu({ chat }: { chat: Chat }) {
  const { t } = useTranslation();

  function download(kind: "json" | "md"): void {
    const found = findChat(chat.id);
    if (!found) return;
    const text =
      kind === "json"
        ? exportJson([{ ...found.chat, active: found.tree.active, messages: listOf(found.tree) }])
        : exportMarkdown(found.chat, pathTo(found.tree, found.tree.active));
    void saveText(
      fileName(chat.title, kind),
      text,
      kind === "json" ? "application/json" : "text/markdown",
    );
  }

  return (
    <Menu
      trigger={<IconButton icon={Ellipsis} label={t("chat.menu")} />}
      groups={[
        [
          {
            label: chat.pinned ? t("chat.unpin") : t("chat.pin"),
            icon: chat.pinned ? PinOff : Pin,
            onSelect: () => changeChat(chat.id, { pinned: !chat.pinned }),
          },
        ],
        [
          {
            label: t("chat.exportMarkdown"),
            note: t("chat.exportMarkdownNote"),
            icon: FileText,
            onSelect: () => download("md"),
          },
          {
            label: t("chat.exportJson"),
            note: t("chat.exportJsonNote"),
            icon: Download,
            onSelect: () => download("json"),
          },
        ],
      ]}
    />
  );
}
