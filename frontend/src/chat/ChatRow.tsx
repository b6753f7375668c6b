/** One chat in the list: open, rename, pin, delete. */
import { clsx } from "clsx";
import { Ellipsis, PencilLine, Pin, PinOff, Trash2 } from "lucide-react";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { NavLink, useNavigate, useParams } from "react-router";
import type { ChatSummary } from "@/core/types";
import { changeChat, deleteChat } from "@/state/chats";
import { runningIn, stop, useTurns } from "@/state/turns";
import { notify, openSheet } from "@/state/ui";
import { IconButton } from "@/ui/Button";
import { Confirm } from "@/ui/Confirm";
import { Menu } from "@/ui/Menu";
import { TitleField } from "./TitleField";

export function ChatRow({ chat }: { chat: ChatSummary }) {
  const { t } = useTranslation();
  const navigate = useNavigate();
  const shown = useParams()["id"] === chat.id;
  const [renaming, setRenaming] = useState(false);
  const [deleting, setDeleting] = useState(false);
  const running = useTurns(({ turns }) =>
    Object.values(turns).some((turn) => turn.chatId === chat.id),
  );
  const title = chat.title || t("chat.untitled");

  async function remove(): Promise<void> {
    try {
      const turn = runningIn(chat.id);
      if (turn) stop(turn.messageId);
      await deleteChat(chat.id);
      if (shown) navigate("/chat");
    } catch (error) {
      notify("problem", t("list.notDeleted", { reason: String(error) }));
    }
  }

  if (renaming) {
    return (
      <li>
        <TitleField chat={chat} onClose={() => setRenaming(false)} />
      </li>
    );
  }
  return (
    <li className="group/row relative">
      <NavLink
        to={`/chat/${chat.id}`}
        onClick={() => openSheet(null)}
        className={({ isActive }) =>
          clsx(
            "flex h-8 items-center gap-2 rounded-sm pr-8 pl-2.5",
            isActive ? "bg-accent-soft text-accent-strong" : "text-text-1 hover:bg-surface-2",
          )
        }
      >
        <span className="min-w-0 grow truncate">{title}</span>
        {running && (
          <span
            role="img"
            aria-label={t("list.running")}
            className="gorget size-2 shrink-0 rounded-full"
          />
        )}
        {chat.pinned && (
          <Pin size={12} aria-label={t("list.pinned")} className="shrink-0 text-text-3" />
        )}
      </NavLink>
      <span className="absolute inset-y-0 right-0.5 flex items-center [@media(hover:hover)]:opacity-0 [@media(hover:hover)]:focus-within:opacity-100 [@media(hover:hover)]:group-hover/row:opacity-100">
        <Menu
          trigger={<IconButton icon={Ellipsis} label={t("list.rowMenu", { title })} small />}
          groups={[
            [
              {
                label: t("chat.rename"),
                icon: PencilLine,
                // The menu gives the focus back to its button first.
                onSelect: () => setTimeout(() => setRenaming(true)),
              },
              {
                label: chat.pinned ? t("chat.unpin") : t("chat.pin"),
                icon: chat.pinned ? PinOff : Pin,
                onSelect: () => changeChat(chat.id, { pinned: !chat.pinned }),
              },
            ],
            [
              {
                label: t("chat.delete"),
                icon: Trash2,
                danger: true,
                onSelect: () => setDeleting(true),
              },
            ],
          ]}
        />
      </span>
      <Confirm
        open={deleting}
        title={t("list.deleteTitle", { title })}
        text={t("list.deleteText", { count: chat.messages })}
        action={t("chat.delete")}
        onConfirm={() => void remove()}
        onClose={() => setDeleting(false)}
      />
    </li>
  );
}
