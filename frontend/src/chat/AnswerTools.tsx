/** What can be done with an answer: other versions, copy, again, go on, change, branch off, delete. */
import {
  Copy,
  Ellipsis,
  FileText,
  GitBranch,
  PencilLine,
  RotateCcw,
  StepForward,
  Trash2,
} from "lucide-react";
import type { RefObject } from "react";
import { useTranslation } from "react-i18next";
import { useNavigate } from "react-router";
import { hasText, textOf } from "@/core/parts";
import { plainText } from "@/core/plain";
import { findChat } from "@/state/chats";
import { branchOff } from "@/state/talk";
import { again, goOn } from "@/state/turns";
import { notify } from "@/state/ui";
import { IconButton } from "@/ui/Button";
import { copyText } from "@/ui/files";
import { Menu } from "@/ui/Menu";
import { BranchPicker } from "./BranchPicker";
import type { MessageProps } from "./MessageView";

interface AnswerToolsProps extends MessageProps {
  unfinished: boolean;
  body: RefObject<HTMLDivElement | null>;
  onEdit: () => void;
}

export function AnswerTools(props: AnswerToolsProps) {
  const { chatId, message, siblings, last, busy, unfinished, body, onEdit, onDelete } = props;
  const { t } = useTranslation();
  const navigate = useNavigate();

  async function copy(text: string): Promise<void> {
    const done = await copyText(text);
    notify(done ? "info" : "problem", done ? t("chat.copied") : t("chat.notCopied"));
  }

  function branch(): void {
    const title = findChat(chatId)?.chat.title ?? "";
    navigate(`/chat/${branchOff(chatId, message.id, t("chat.branchTitle", { title }))}`);
  }

  return (
    <div className="tools -mr-1.5 ml-auto flex items-center">
      <BranchPicker chatId={chatId} siblings={siblings} id={message.id} />
      <IconButton
        icon={Copy}
        label={t("chat.copyMarkdown")}
        small
        onClick={() => void copy(textOf(message.parts))}
      />
      <IconButton
        icon={RotateCcw}
        label={t("chat.regenerate")}
        small
        disabled={busy}
        onClick={() => again(chatId, message.id)}
      />
      {last && unfinished && hasText(message) && (
        <IconButton
          icon={StepForward}
          label={t("chat.continue")}
          small
          disabled={busy}
          onClick={() => goOn(chatId, message.id)}
        />
      )}
      <Menu
        align="start"
        trigger={<IconButton icon={Ellipsis} label={t("chat.more")} small />}
        groups={[
          [
            {
              label: t("chat.copyPlain"),
              icon: FileText,
              onSelect: () => void copy(body.current ? plainText(body.current) : ""),
            },
            {
              label: t("chat.copyMarkdown"),
              icon: Copy,
              onSelect: () => void copy(textOf(message.parts)),
            },
          ],
          [
            { label: t("chat.edit"), icon: PencilLine, disabled: busy, onSelect: onEdit },
            { label: t("chat.branch"), icon: GitBranch, onSelect: branch },
          ],
          [{ label: t("chat.delete"), icon: Trash2, danger: true, onSelect: onDelete }],
        ]}
      />
    </div>
  );
}
