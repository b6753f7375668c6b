/** The installed models: what they are, how they fit this machine, and what can be done with them. */
import { PackageOpen, PowerOff, RefreshCw, TriangleAlert } from "lucide-react";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import type { Installed, InstalledModel } from "@/api/installed";
import { bytes } from "@/core/format";
import { modelsChanged, useInstalled, useTasks } from "@/state/installed";
import { isHome, useSession } from "@/state/session";
import { useTelemetry } from "@/state/telemetry";
import { Button, IconButton } from "@/ui/Button";
import { CopyLine } from "@/ui/CopyLine";
import { Page, Part } from "@/ui/Page";
import { State } from "@/ui/State";
import { DeleteDialog } from "./DeleteDialog";
import { LoadDialog, type LoadQuestion } from "./LoadDialog";
import { ModelCard } from "./ModelCard";
import { TaskLine } from "./TaskLine";
import { useActions } from "./useActions";

const CONVERT = "coli convert FILE.gguf NAME";

export default function ModelsPage() {
  const { t } = useTranslation();
  const home = useSession(isHome);
  return (
    <Page
      title={t("nav.models")}
      tools={
        home && <IconButton icon={RefreshCw} label={t("models.refresh")} onClick={modelsChanged} />
      }
    >
      {home ? (
        <Shelf />
      ) : (
        <State icon={TriangleAlert} title={t("models.notHere")} text={t("models.notHereText")} />
      )}
    </Page>
  );
}

function Shelf() {
  const { t } = useTranslation();
  const { data, error, refetch } = useInstalled();
  const tasks = useTasks();
  const [question, setQuestion] = useState<LoadQuestion | null>(null);
  const [doomed, setDoomed] = useState<string | null>(null);
  const actions = useActions(setQuestion);
  const unloaded = useTelemetry(({ state }) => state?.engine.state === "unloaded");
  const reason = useTelemetry(({ state }) =>
    state?.engine.state === "unloaded" ? state.engine.last_failure : null,
  );
  const change = tasks.find(({ kind }) => kind !== "verify");

  if (!data) {
    return error ? (
      <State
        icon={TriangleAlert}
        title={t("models.unreachable")}
        text={error.message}
        actions={<Button onClick={() => void refetch()}>{t("common.retry")}</Button>}
      />
    ) : (
      <p aria-busy="true" className="text-text-2">
        {t("models.looking")}
      </p>
    );
  }
  return (
    <>
      <Place installed={data} />
      {unloaded && (
        <div role="status" className="flex gap-3 rounded-md bg-warn-soft p-3 text-warn">
          <PowerOff size={17} aria-hidden="true" className="mt-0.5 shrink-0" />
          <p>
            {t("models.nothingLoaded")}
            {reason && <span className="code mt-1 block whitespace-pre-wrap">{reason}</span>}
          </p>
        </div>
      )}
      {change && change.kind === "unload" && <TaskLine task={change} />}
      {data.models.length === 0 ? (
        <State
          icon={PackageOpen}
          title={t("models.empty")}
          text={t("models.emptyText", { folder: data.folder })}
        />
      ) : (
        <ul aria-label={t("models.list")} className="flex flex-col gap-3">
          {inOrder(data.models).map((model) => (
            <ModelCard
              key={model.folder}
              model={model}
              tasks={tasks.filter(({ name, kind }) => name === model.name && kind !== "unload")}
              busy={change?.state === "running"}
              actions={actions}
              onDelete={() => setDoomed(model.name)}
              onOptions={() => setQuestion({ kind: "options", name: model.name })}
            />
          ))}
        </ul>
      )}
      <Add folder={data.folder} />
      <LoadDialog question={question} actions={actions} onClose={() => setQuestion(null)} />
      <DeleteDialog name={doomed} onClose={() => setDoomed(null)} />
    </>
  );
}

/** The loaded one first, those that cannot be used last. */
function inOrder(models: readonly InstalledModel[]): InstalledModel[] {
  const rank = ({ loaded, problem }: InstalledModel) => (loaded ? 0 : problem === null ? 1 : 2);
  return models.toSorted((a, b) => rank(a) - rank(b));
}

function Place({ installed }: { installed: Installed }) {
  const { t, i18n } = useTranslation();
  const used = installed.models.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
  return (
    <dl className="grid grid-cols-2 gap-x-8 gap-y-3 sm:grid-cols-[1fr_auto_auto]">
      <div className="col-span-2 min-w-0 sm:col-span-1">
        <dt className="eyebrow mb-1">{t("models.folder")}</dt>
        <dd>
          <CopyLine text={installed.folder} label={t("models.copyFolder")} />
        </dd>
      </div>
      <div>
        <dt className="eyebrow mb-1">{t("models.used")}</dt>
        <dd className="figures py-1.5">{bytes(used, i18n.language)}</dd>
      </div>
      {installed.free_bytes !== null && (
        <div>
          <dt className="eyebrow mb-1">{t("models.free")}</dt>
          <dd className="figures py-1.5">{bytes(installed.free_bytes, i18n.language)}</dd>
        </div>
      )}
    </dl>
  );
}

/** Until models can be downloaded here, the ways to bring one. */
function Add({ folder }: { folder: string }) {
  const { t } = useTranslation();
  return (
    <Part title={t("models.add")} text={t("models.addText", { folder })}>
      <div className="max-w-2xl">
        <CopyLine text={CONVERT} label={t("models.copyCommand")} />
      </div>
    </Part>
  );
}
