/** An answer that did not come, or broke off: what happened, and the actions that help. */
import { Boxes, RotateCcw, Scissors, Settings, StepForward, TriangleAlert } from "lucide-react";
import { useTranslation } from "react-i18next";
import { useNavigate } from "react-router";
import { hasText } from "@/core/parts";
import type { Failure, Message } from "@/core/types";
import { again, goOn } from "@/state/turns";
import { Button } from "@/ui/Button";
import { shorten } from "./shorten";

interface FailureCardProps {
  chatId: string;
  message: Message;
  failure: Failure;
}

export function FailureCard({ chatId, message, failure }: FailureCardProps) {
  const { t } = useTranslation();
  const navigate = useNavigate();
  const begun = hasText(message);
  const retry = () => again(chatId, message.id);
  return (
    <div
      role="alert"
      className="mt-2 flex flex-col gap-2 rounded-md border border-line border-l-4 border-l-danger bg-surface-1 p-3"
    >
      <p className="flex items-center gap-2 font-medium text-danger">
        <TriangleAlert size={16} aria-hidden="true" className="shrink-0" />
        {t(`failure.${failure.kind}.title`)}
      </p>
      <p className="text-text-2">{t(`failure.${failure.kind}.text`)}</p>
      {failure.message && (
        <p className="code max-h-32 overflow-y-auto whitespace-pre-wrap text-text-2">
          {failure.message}
          {failure.request_id && `\n${failure.request_id}`}
        </p>
      )}
      <div className="flex flex-wrap gap-2">
        {failure.kind === "context" && (
          <Button
            small
            tone="primary"
            icon={Scissors}
            onClick={() => shorten(chatId, message.id, failure.message)}
          >
            {t("failure.shorten")}
          </Button>
        )}
        {begun && (
          <Button small tone="primary" icon={StepForward} onClick={() => goOn(chatId, message.id)}>
            {t("chat.continue")}
          </Button>
        )}
        <Button small icon={RotateCcw} onClick={retry}>
          {t("common.retry")}
        </Button>
        {failure.kind === "no_model" && (
          <Button small tone="primary" icon={Boxes} onClick={() => navigate("/models")}>
            {t("failure.loadModel")}
          </Button>
        )}
        {(failure.kind === "unreachable" || failure.kind === "login") && (
          <Button small tone="quiet" icon={Settings} onClick={() => navigate("/settings")}>
            {t("failure.connection")}
          </Button>
        )}
      </div>
    </div>
  );
}
