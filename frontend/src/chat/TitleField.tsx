/** The title of a chat as a field: Enter or leaving it keeps what is written, Escape does not. */
import { useTranslation } from "react-i18next";
import type { ChatSummary } from "@/core/types";
import { changeChat } from "@/state/chats";

interface Props {
  chat: Pick<ChatSummary, "id" | "title">;
  onClose: () => void;
  className?: string;
}

export function TitleField({ chat, onClose, className = "field" }: Props) {
  const { t } = useTranslation();
  const keep = (text: string) => {
    onClose();
    const title = text.trim();
    if (title !== "" && title !== chat.title) changeChat(chat.id, { title });
  };
  return (
    <input
      // biome-ignore lint/a11y/noAutofocus: the user has just asked for this field
      autoFocus
      aria-label={t("chat.rename")}
      defaultValue={chat.title}
      maxLength={300}
      onFocus={(event) => event.target.select()}
      onBlur={(event) => keep(event.target.value)}
      onKeyDown={(event) => {
        if (event.nativeEvent.isComposing) return;
        if (event.key === "Enter") keep(event.currentTarget.value);
        if (event.key === "Escape") onClose();
      }}
      className={className}
    />
  );
}
