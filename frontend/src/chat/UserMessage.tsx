/** What the user said, with its files, and what can be done with it. */
import { Copy, PencilLine, RotateCcw, Trash2 } from "lucide-react";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { filesOf, textOf } from "@/core/parts";
import { askAgain } from "@/state/talk";
import { answer } from "@/state/turns";
import { IconButton } from "@/ui/Button";
import { copyText } from "@/ui/files";
import { BranchPicker } from "./BranchPicker";
import { FileChip } from "./FileChip";
import { MessageEditor } from "./MessageEditor";
import type { MessageProps } from "./MessageView";

export function UserMessage({ chatId, message, siblings, last, busy, onDelete }: MessageProps) {
  const { t } = useTranslation();
  const [editing, setEditing] = useState(false);
  const text = textOf(message.parts);
  const files = filesOf(message.parts);

  if (editing) {
    return (
      <MessageEditor
        text={text}
        action={t("chat.sendEdited")}
        onCancel={() => setEditing(false)}
        onDone={(next) => {
          setEditing(false);
          askAgain(chatId, message, next);
        }}
      />
    );
  }
  return (
    <div className="flex flex-col items-end gap-1">
      {files.length > 0 && (
        <div className="flex max-w-full flex-wrap justify-end gap-1.5">
          {files.map((file) => (
            <FileChip key={file.name} name={file.name} text={file.text} />
          ))}
        </div>
      )}
      {text !== "" && (
        <div className="max-w-[min(85%,38rem)] whitespace-pre-wrap rounded-md rounded-tr-[3px] bg-accent-soft px-3.5 py-2.5 text-[0.9375rem] leading-relaxed [overflow-wrap:anywhere]">
          {text}
        </div>
      )}
      <div className="tools flex items-center">
        <BranchPicker chatId={chatId} siblings={siblings} id={message.id} />
        <IconButton icon={Copy} label={t("chat.copy")} small onClick={() => void copyText(text)} />
        <IconButton
          icon={PencilLine}
          label={t("chat.edit")}
          small
          disabled={busy}
          onClick={() => setEditing(true)}
        />
        <IconButton icon={Trash2} label={t("chat.delete")} small onClick={onDelete} />
        {last && !busy && (
          <IconButton
            icon={RotateCcw}
            label={t("chat.answer")}
            small
            onClick={() => answer(chatId, message.id)}
          />
        )}
      </div>
    </div>
  );
}
