/** A piece of work on a model: how far it is, how it ended, what it found. */
import { clsx } from "clsx";
import { CircleCheck, CircleX, TriangleAlert } from "lucide-react";
import { useTranslation } from "react-i18next";
import type { Finding, Task } from "@/api/installed";
import { duration, percent } from "@/core/format";
import { Button } from "@/ui/Button";

interface TaskLineProps {
  task: Task;
  onCancel?: () => void;
}

export function TaskLine({ task, onCancel }: TaskLineProps) {
  const { t, i18n } = useTranslation();
  if (task.state === "running") {
    // How far nobody knows has no number; how long it takes has.
    const spent = duration(Math.floor(task.running_seconds) * 1000, i18n.language);
    const words = task.phase ? t(`models.phase.${task.phase}`) : t(`models.doing.${task.kind}`);
    const known = task.fraction > 0;
    return (
      <div className="flex flex-wrap items-center gap-x-3 gap-y-2">
        <div className="min-w-40 grow">
          <div className="mb-1 flex justify-between gap-2 text-xs">
            <span className="text-text-2">{words}</span>
            <span className="figures text-text-2">
              {known ? percent(task.fraction) : task.running_seconds >= 1 && spent}
            </span>
          </div>
          <progress
            aria-label={words}
            value={known ? task.fraction : undefined}
            max={1}
            className="h-1.5 w-full accent-accent"
          />
        </div>
        {onCancel && (
          <Button small onClick={onCancel}>
            {t("common.cancel")}
          </Button>
        )}
      </div>
    );
  }
  if (task.kind === "verify") return <Verified task={task} />;
  if (task.state === "done") return null;
  return (
    <p role="alert" className="flex gap-2 text-danger">
      <CircleX size={16} aria-hidden="true" className="mt-0.5 shrink-0" />
      <span>
        {t(`models.${task.state}.${task.kind}`)}
        {task.state === "failed" && (
          <span className="code mt-1 block whitespace-pre-wrap">{task.message}</span>
        )}
      </span>
    </p>
  );
}

function Verified({ task }: { task: Task }) {
  const { t } = useTranslation();
  const wrong = task.findings.filter(({ level }) => level === "error" || level === "warning");
  const errors = wrong.filter(({ level }) => level === "error").length;
  if (task.state !== "done") {
    return (
      <p role="status" className="text-text-2 text-xs">
        {t(`models.${task.state === "failed" ? "failed" : "cancelled"}.verify`)}
        {task.state === "failed" && ` ${task.message}`}
      </p>
    );
  }
  if (wrong.length === 0) {
    return (
      <p role="status" className="flex items-center gap-2 text-accent text-xs">
        <CircleCheck size={15} aria-hidden="true" className="shrink-0" />
        {t("models.verified")}
      </p>
    );
  }
  return (
    <div role="status">
      <p className={clsx("flex items-center gap-2", errors > 0 ? "text-danger" : "text-warn")}>
        <TriangleAlert size={15} aria-hidden="true" className="shrink-0" />
        {[
          errors > 0 && t("models.errors", { count: errors }),
          wrong.length > errors && t("models.warnings", { count: wrong.length - errors }),
        ]
          .filter(Boolean)
          .join(", ")}
      </p>
      <ul className="mt-1.5 flex flex-col gap-1.5 text-xs">
        {wrong.slice(0, SHOWN).map((finding) => (
          <Found key={`${finding.where} ${finding.what}`} finding={finding} />
        ))}
        {wrong.length > SHOWN && (
          <li className="text-text-3">
            {t("models.moreFindings", { count: wrong.length - SHOWN })}
          </li>
        )}
      </ul>
    </div>
  );
}

const SHOWN = 20;

function Found({ finding }: { finding: Finding }) {
  return (
    <li className="break-words border-line border-l-2 pl-2">
      {finding.where && <span className="code block text-text-3">{finding.where}</span>}
      {finding.what}
      {finding.fix && <span className="block text-text-2">{finding.fix}</span>}
    </li>
  );
}
