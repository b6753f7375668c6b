/** A tool call or its result, folded to one line. */
import { ChevronRight, CornerDownRight, Wrench } from "lucide-react";
import { useTranslation } from "react-i18next";
import type { Part } from "@/core/types";

type ToolPart = Extract<Part, { type: "tool_call" | "tool_result" }>;

export function ToolCall({ part }: { part: ToolPart }) {
  const { t } = useTranslation();
  const call = part.type === "tool_call";
  const body = call ? pretty(part.arguments) : part.text;
  const Icon = call ? Wrench : CornerDownRight;
  return (
    <details className="group/tool my-2 rounded-md border border-line bg-surface-0/60">
      <summary className="flex cursor-pointer list-none items-center gap-2 px-3 py-2 text-xs">
        <Icon size={15} aria-hidden="true" className="shrink-0 text-accent" />
        <span className="shrink-0 font-medium font-mono">
          {call ? part.name || t("chat.tool") : t("chat.toolResult")}
        </span>
        <span className="min-w-0 grow truncate font-mono text-text-3">{oneLine(body)}</span>
        <ChevronRight
          size={15}
          aria-hidden="true"
          className="shrink-0 transition-transform group-open/tool:rotate-90"
        />
      </summary>
      <pre className="code max-h-80 overflow-auto whitespace-pre-wrap border-line border-t px-3 py-2">
        {body}
      </pre>
    </details>
  );
}

function oneLine(text: string): string {
  return text.slice(0, 200).replace(/\s+/g, " ");
}

/** Arguments that still arrive, or are broken, are shown as they are. */
function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
