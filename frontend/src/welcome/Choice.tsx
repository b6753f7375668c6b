/** Second step: the models that there are, how they fit, and which one answers. */
import { clsx } from "clsx";
import { CircleCheck } from "lucide-react";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import type { InstalledModel } from "@/api/installed";
import { inOrder } from "@/core/fit";
import { bytes, rate } from "@/core/format";
import {
  beginLoad,
  modelsChanged,
  tasksChanged,
  useFit,
  useInstalled,
  useTasks,
} from "@/state/installed";
import { Button } from "@/ui/Button";
import { VerdictMark } from "@/ui/VerdictMark";

export function Choice() {
  const { t } = useTranslation();
  const { data, error } = useInstalled();
  // The last load of any model.
  const task = useTasks().find(({ kind }) => kind === "load");
  const [problem, setProblem] = useState("");
  if (error && !data) return <p className="text-danger">{error.message}</p>;
  if (!data) return <p aria-busy="true">{t("first.looking")}</p>;
  const models = inOrder(data.models);
  if (models.length === 0) {
    return (
      <div className="rounded-md border border-line bg-surface-1 p-4">
        <p className="font-medium">{t("first.noModel")}</p>
        <p className="mt-1 text-text-2 [overflow-wrap:anywhere]">
          {t("first.noModelText", { folder: data.folder })}
        </p>
      </div>
    );
  }
  const choose = (name: string) => {
    setProblem("");
    beginLoad(name, {})
      .catch((refusal: unknown) =>
        setProblem(refusal instanceof Error ? refusal.message : String(refusal)),
      )
      .finally(() => {
        tasksChanged();
        modelsChanged();
      });
  };
  const failed = task?.state === "failed" ? task.message : "";
  return (
    <>
      <ul className="flex flex-col gap-2">
        {models.map((model) => (
          <Row
            key={model.name}
            model={model}
            busy={task?.state === "running"}
            loading={task?.state === "running" && task.name === model.name}
            onChoose={() => choose(model.name)}
          />
        ))}
      </ul>
      {(problem || failed) && (
        <p role="alert" className="mt-2 text-danger [overflow-wrap:anywhere]">
          {problem || failed}
        </p>
      )}
    </>
  );
}

interface RowProps {
  model: InstalledModel;
  busy: boolean;
  loading: boolean;
  onChoose: () => void;
}

function Row({ model, busy, loading, onChoose }: RowProps) {
  const { t, i18n } = useTranslation();
  const { data: fit, error } = useFit(model, true);
  // What does not fit has no speed to promise.
  const speed = fit?.fits ? fit.tokens_per_second : null;
  return (
    <li
      className={clsx(
        "flex flex-wrap items-center gap-x-4 gap-y-2 rounded-md border bg-surface-1 p-3",
        model.loaded ? "border-accent" : "border-line",
      )}
    >
      <div className="min-w-0 grow">
        <p className="font-medium [overflow-wrap:anywhere]">{model.name}</p>
        <p className="figures mt-0.5 flex flex-wrap items-center gap-x-2 gap-y-1 text-text-2 text-xs">
          {bytes(model.size_bytes, i18n.language)}
          {fit && <VerdictMark fit={fit} />}
          {speed &&
            t("first.speed", {
              low: rate(speed.low, i18n.language),
              high: rate(speed.high, i18n.language),
            })}
          {!fit && !error && <span aria-busy="true">{t("first.measuring")}</span>}
        </p>
      </div>
      {model.loaded ? (
        <span className="inline-flex items-center gap-1.5 font-medium text-accent">
          <CircleCheck size={16} aria-hidden="true" />
          {t("first.ready")}
        </span>
      ) : (
        <Button disabled={busy || fit?.fits === false} onClick={onChoose}>
          {t(loading ? "first.loading" : "first.use")}
        </Button>
      )}
    </li>
  );
}
