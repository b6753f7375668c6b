/** One message of the branch that is shown. Rendered again only if it has changed itself. */
import { TriangleAlert } from "lucide-react";
import { memo, useState } from "react";
import { useTranslation } from "react-i18next";
import { textOf } from "@/core/parts";
import type { Message } from "@/core/types";
import { remove } from "@/state/talk";
import { Boundary } from "@/ui/Boundary";
import { Confirm } from "@/ui/Confirm";
import { AssistantMessage } from "./AssistantMessage";
import { ToolCall } from "./ToolCall";
import { UserMessage } from "./UserMessage";

export interface MessageProps {
  chatId: string;
  message: Message;
  siblings: readonly string[];
  /** It ends the branch. */
  last: boolean;
  /** An answer is being made in this chat. */
  busy: boolean;
  onDelete: () => void;
}

export const MessageView = memo(function MessageView(props: Omit<MessageProps, "onDelete">) {
  const { chatId, message } = props;
  const { t } = useTranslation();
  const [deleting, setDeleting] = useState(false);
  const all: MessageProps = { ...props, onDelete: () => setDeleting(true) };
  return (
    <article
      aria-label={t(`role.${message.role}`)}
      data-role={message.role}
      className={props.last ? "turn" : "turn turn-past"}
    >
      <Boundary about={message} fallback={() => <Broken message={message} />}>
        <Body {...all} />
      </Boundary>
      <Confirm
        open={deleting}
        title={t("chat.deleteTitle")}
        text={t("chat.deleteText")}
        action={t("chat.delete")}
        onConfirm={() => remove(chatId, message.id)}
        onClose={() => setDeleting(false)}
      />
    </article>
  );
});

function Body(props: MessageProps) {
  const { message } = props;
  if (message.role === "user") return <UserMessage {...props} />;
  if (message.role === "assistant") return <AssistantMessage {...props} />;
  const results = message.parts.filter((part) => part.type === "tool_result");
  if (results.length > 0) {
    return results.map((part) => <ToolCall key={part.id} part={part} />);
  }
  return <p className="whitespace-pre-wrap text-text-2 text-xs">{textOf(message.parts)}</p>;
}

/** What is left of a message that cannot be shown: its text. */
function Broken({ message }: { message: Message }) {
  const { t } = useTranslation();
  return (
    <div>
      <p className="mb-1 flex items-center gap-1.5 text-warn text-xs">
        <TriangleAlert size={14} aria-hidden="true" />
        {t("chat.broken")}
      </p>
      <pre className="code whitespace-pre-wrap">{textOf(message.parts)}</pre>
    </div>
  );
}
