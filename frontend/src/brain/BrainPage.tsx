/** The whole model, one cell for each expert, while it thinks; and where there is none, why. */
import { BrainCircuit, LoaderCircle, Unplug } from "lucide-react";
import { type ReactNode, useEffect, useState } from "react";
import { useTranslation } from "react-i18next";
import type { LiveState } from "@/api/livestate";
import type { Span } from "@/core/expertmap";
import { useExperts, useSlowExperts } from "@/state/experts";
import { usePrefs } from "@/state/prefs";
import { useTelemetry, watchExperts } from "@/state/telemetry";
import { PageHeader } from "@/ui/PageHeader";
import { Segments } from "@/ui/Segments";
import { State } from "@/ui/State";
import { CellDetails } from "./CellDetails";
import { Cortex } from "./Cortex";
import { ExpertTable } from "./ExpertTable";
import { Hottest } from "./Hottest";
import { Legend } from "./Legend";
import { Lookups } from "./Lookups";
import { useMark } from "./useMark";

type Shown = "picture" | "table";

export default function BrainPage() {
  const { t } = useTranslation();
  useEffect(() => {
    document.title = `${t("nav.brain")} · Colibri`;
  }, [t]);
  const [span, setSpan] = useState<Span>("all");
  const [shown, setShown] = useState<Shown>("picture");
  const state = useTelemetry((telemetry) => telemetry.state);
  const status = useTelemetry((telemetry) => telemetry.status);
  const elsewhere = usePrefs((prefs) => prefs.base !== "");
  const ready = state !== null && state.experts.rows > 0;
  return (
    <>
      <PageHeader title={t("nav.brain")}>
        {ready && (
          <>
            <Segments<Span>
              label={t("brain.span")}
              value={span}
              options={[
                { value: "all", label: t("brain.all") },
                { value: "turn", label: t("brain.turn") },
              ]}
              onChange={setSpan}
            />
            <Segments<Shown>
              label={t("brain.view")}
              value={shown}
              options={[
                { value: "picture", label: t("brain.picture") },
                { value: "table", label: t("brain.table") },
              ]}
              onChange={setShown}
            />
          </>
        )}
      </PageHeader>
      {state && status === "lost" && <Note>{t("brain.lost")}</Note>}
      {state && elsewhere && <Note>{t("brain.elsewhere")}</Note>}
      {ready ? <Brain state={state} span={span} shown={shown} /> : <Missing state={state} />}
    </>
  );
}

function Note({ children }: { children: ReactNode }) {
  return (
    <p role="status" className="bg-warn-soft px-4 py-2 text-warn text-xs">
      {children}
    </p>
  );
}

interface BrainProps {
  state: LiveState;
  span: Span;
  shown: Shown;
}

function Brain({ state, span, shown }: BrainProps) {
  const { t } = useTranslation();
  const { layers } = state.experts;
  const map = useSlowExperts();
  const problem = useExperts((experts) => experts.problem);
  const [only, setOnly] = useState<number | null>(null);
  const [marked, mark, missing] = useMark(map, layers);
  // The table needs maps as well, though no picture asks for them.
  useEffect(() => watchExperts(1), []);
  if (!map) {
    return problem ? (
      <State icon={Unplug} title={t("brain.brokenTitle")} text={t("brain.broken", { problem })} />
    ) : (
      <Waiting />
    );
  }
  return (
    <div className="min-h-0 grow overflow-y-auto">
      <div className="flex flex-col gap-4 p-3 sm:p-4">
        {shown === "picture" ? (
          <section
            aria-label={t("brain.cortex")}
            className="rounded-md bg-[var(--cortex-ground)] p-2.5 text-[var(--cortex-text)] sm:p-4"
          >
            <Cortex
              map={map}
              layers={layers}
              span={span}
              only={only}
              marked={marked}
              onMark={mark}
            />
            <Legend map={map} only={only} onOnly={setOnly} />
          </section>
        ) : (
          <ExpertTable map={map} layers={layers} marked={marked} onMark={mark} />
        )}
        <div className="grid items-start gap-4 md:grid-cols-2">
          <div className="flex flex-col gap-4">
            <CellDetails map={map} layers={layers} marked={marked} missing={missing} />
            <Lookups lookups={state.lookups} />
          </div>
          <Hottest map={map} layers={layers} span={span} marked={marked} onMark={mark} />
        </div>
      </div>
    </div>
  );
}

function Waiting() {
  const { t } = useTranslation();
  return (
    <div role="status" className="m-auto flex items-center gap-2 text-text-2">
      <LoaderCircle size={16} aria-hidden="true" className="animate-spin" />
      {t("brain.waiting")}
    </div>
  );
}

function Missing({ state }: { state: LiveState | null }) {
  const { t } = useTranslation();
  const status = useTelemetry((telemetry) => telemetry.status);
  if (!state) {
    if (status === "connecting") return <Waiting />;
    return (
      <State
        icon={Unplug}
        title={t("brain.noneTitle")}
        text={status === "none" ? t("brain.none") : t("runtime.lost")}
      />
    );
  }
  const { state: engine } = state.engine;
  if (engine === "loading" || engine === "restarting") return <Waiting />;
  if (engine !== "ready") {
    return (
      <State
        icon={Unplug}
        title={t("brain.stoppedTitle")}
        text={state.engine.last_failure ?? t("brain.stopped")}
      />
    );
  }
  return (
    <State
      icon={BrainCircuit}
      title={t("brain.denseTitle", { model: state.model?.id ?? t("model.none") })}
      text={t("brain.dense")}
    />
  );
}
