/** One installed model: what it is, how it fits, its work, and its buttons. */
import {
  CircleCheck,
  Download,
  PowerOff,
  ShieldCheck,
  SlidersHorizontal,
  Trash2,
} from "lucide-react";
import { useTranslation } from "react-i18next";
import type { InstalledModel, Task } from "@/api/installed";
import { bytes, count } from "@/core/format";
import { expertCount } from "@/i18n/experts";
import { useFit } from "@/state/installed";
import { Button, IconButton } from "@/ui/Button";
import { FitView } from "./FitView";
import { TaskLine } from "./TaskLine";
import type { Actions } from "./useActions";

interface ModelCardProps {
  model: InstalledModel;
  /** Its tasks, latest first. */
  tasks: Task[];
  /** A model is being loaded or unloaded. */
  busy: boolean;
  actions: Actions;
  onDelete: () => void;
  onOptions: () => void;
}

export function ModelCard({ model, tasks, busy, actions, onDelete, onOptions }: ModelCardProps) {
  const { t, i18n } = useTranslation();
  const usable = model.problem === null;
  const fit = useFit(model, usable && !busy);
  const shown = (["load", "verify"] as const).flatMap(
    (kind) => tasks.find((task) => task.kind === kind) ?? [],
  );
  const verifying = shown.some(({ kind, state }) => kind === "verify" && state === "running");
  const facts = [
    bytes(model.size_bytes, i18n.language),
    model.family,
    model.quantization,
    model.context_length &&
      t("model.context", { number: count(model.context_length, i18n.language) }),
    model.experts > 0 && expertCount(t, i18n.language, model),
    model.kind && t(`models.kind.${model.kind}`, model.kind),
  ].filter(Boolean);
  return (
    <li
      aria-label={model.name}
      aria-current={model.loaded || undefined}
      className="flex flex-col gap-3 rounded-md border border-line bg-surface-1 p-4 aria-[current]:border-accent"
    >
      <div className="flex flex-wrap items-start gap-x-4 gap-y-3">
        <div className="min-w-0 grow basis-72">
          <h2 className="flex flex-wrap items-center gap-2 break-all font-semibold">
            {model.name}
            {model.loaded && (
              <span className="inline-flex items-center gap-1 rounded-full bg-accent-soft px-2 py-0.5 font-medium text-accent-strong text-xs">
                <CircleCheck size={13} aria-hidden="true" />
                {t("models.loaded")}
              </span>
            )}
          </h2>
          <p className="figures mt-1 text-text-2 text-xs">{facts.join(" · ")}</p>
          <p className="code mt-0.5 break-all text-text-3">{model.folder}</p>
        </div>
        <div className="flex shrink-0 items-center gap-1">
          {model.loaded ? (
            <Button icon={PowerOff} disabled={busy} onClick={() => void actions.unload(model.name)}>
              {t("models.unload")}
            </Button>
          ) : (
            <Button
              tone="primary"
              icon={Download}
              disabled={busy || !usable}
              onClick={() => void actions.load(model.name)}
            >
              {t("models.load")}
            </Button>
          )}
          <IconButton
            icon={SlidersHorizontal}
            label={t(model.loaded ? "models.reloadWith" : "models.loadWith")}
            disabled={busy || !usable}
            onClick={onOptions}
          />
          <IconButton
            icon={ShieldCheck}
            label={t("models.verify")}
            disabled={verifying}
            onClick={() => void actions.verify(model.name)}
          />
          <IconButton
            icon={Trash2}
            label={t("models.delete")}
            disabled={model.loaded || busy || verifying}
            onClick={onDelete}
          />
        </div>
      </div>
      {model.problem !== null && (
        <p className="break-words rounded-sm bg-danger-soft p-2.5 text-danger">{model.problem}</p>
      )}
      {shown.map((task) => (
        <TaskLine
          key={task.id}
          task={task}
          {...(task.phase !== "restoring" && { onCancel: () => void actions.cancel(task.id) })}
        />
      ))}
      {usable && <FitView fit={fit.data} error={fit.error} loading={fit.isFetching} />}
    </li>
  );
}
