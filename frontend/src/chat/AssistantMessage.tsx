/** An answer: reasoning, text, tool calls; while it comes what is being done, afterwards figures. */
import { useRef, useState } from "react";
import { useTranslation } from "react-i18next";
import { textOf } from "@/core/parts";
import type { Part } from "@/core/types";
import { rewrite } from "@/state/talk";
import { type LiveTurn, useTurns } from "@/state/turns";
import { AnswerTools } from "./AnswerTools";
import { FailureCard } from "./FailureCard";
import { LiveStatus } from "./LiveStatus";
import { Markdown } from "./Markdown";
import { MessageEditor } from "./MessageEditor";
import type { MessageProps } from "./MessageView";
import { Reasoning } from "./Reasoning";
import { StatsLine } from "./StatsLine";
import { ToolCall } from "./ToolCall";

export function AssistantMessage(props: MessageProps) {
  const { chatId, message, last } = props;
  const { t } = useTranslation();
  const turn = useTurns(({ turns }) => turns[message.id]);
  const [editing, setEditing] = useState(false);
  const body = useRef<HTMLDivElement>(null);
  const parts = turn?.parts ?? message.parts;

  if (editing) {
    return (
      <MessageEditor
        text={textOf(message.parts)}
        action={t("chat.saveEdited")}
        onCancel={() => setEditing(false)}
        onDone={(text) => {
          setEditing(false);
          rewrite(chatId, message, text);
        }}
      />
    );
  }
  const { failure, finish } = message.meta;
  const unfinished = !turn && !failure && finish === undefined && !message.meta.edited;
  return (
    <div className="flex flex-col gap-1.5">
      <div ref={body}>
        {parts.map((part, at) => (
          <PartView
            // biome-ignore lint/suspicious/noArrayIndexKey: parts only ever grow at the end
            key={at}
            part={part}
            turn={turn}
            reasoningMs={message.meta.reasoning_ms}
          />
        ))}
      </div>
      {turn ? (
        <LiveStatus turn={turn} />
      ) : (
        <>
          {failure && <FailureCard chatId={chatId} message={message} failure={failure} />}
          {unfinished && <p className="text-text-3 text-xs">{t("chat.interrupted")}</p>}
          <div className="flex flex-wrap items-center justify-between gap-x-3 gap-y-1">
            <StatsLine meta={message.meta} />
            <AnswerTools
              {...props}
              unfinished={unfinished || finish === "length" || finish === "cancelled"}
              body={body}
              onEdit={() => setEditing(true)}
            />
          </div>
          {last && finish === "length" && (
            <p className="text-text-2 text-xs">{t("chat.lengthHint")}</p>
          )}
        </>
      )}
    </div>
  );
}

interface PartViewProps {
  part: Part;
  turn: LiveTurn | undefined;
  reasoningMs: number | undefined;
}

function PartView({ part, turn, reasoningMs }: PartViewProps) {
  switch (part.type) {
    case "text":
      return <Markdown text={part.text} live={turn !== undefined} />;
    case "reasoning":
      return <Reasoning text={part.text} live={turn?.phase === "thinking"} ms={reasoningMs} />;
    case "tool_call":
    case "tool_result":
      return <ToolCall part={part} />;
    case "file":
      return null;
  }
}
