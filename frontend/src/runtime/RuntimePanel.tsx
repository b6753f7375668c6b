/** What the machine does: speed, where the time goes, where the experts are, what is left of it. */
import { Unplug } from "lucide-react";
import { useTranslation } from "react-i18next";
import { useTelemetry } from "@/state/telemetry";
import { Bottleneck } from "./Bottleneck";
import { Disk } from "./Disk";
import { Hardware } from "./Hardware";
import { Memory } from "./Memory";
import { Queue } from "./Queue";
import { Speed } from "./Speed";
import { Tiers } from "./Tiers";
import { TurnTime } from "./TurnTime";

export function RuntimePanel() {
  const { t } = useTranslation();
  const status = useTelemetry((telemetry) => telemetry.status);
  const state = useTelemetry((telemetry) => telemetry.state);
  const trend = useTelemetry((telemetry) => telemetry.trend);
  if (!state) {
    const words =
      status === "none"
        ? t("runtime.none")
        : status === "connecting"
          ? t("runtime.connecting")
          : t("runtime.lost");
    return (
      <aside aria-label={t("runtime.title")} className="p-4">
        <h2 className="eyebrow mb-2">{t("runtime.title")}</h2>
        <p className="flex gap-2 text-text-2 text-xs leading-relaxed">
          <Unplug size={15} aria-hidden="true" className="mt-0.5 shrink-0 text-text-3" />
          {words}
        </p>
      </aside>
    );
  }
  return (
    <aside aria-label={t("runtime.title")} className="figures divide-y divide-line">
      {status !== "live" && status !== "polling" && (
        <p role="status" className="bg-warn-soft px-4 py-2 text-warn text-xs">
          {t("runtime.lost")}
        </p>
      )}
      <Bottleneck bottleneck={state.bottleneck} engine={state.engine} />
      <Speed speed={state.speed} trend={trend} />
      <TurnTime turn={state.turn} />
      <Tiers tiers={state.tiers} lookups={state.lookups} />
      {state.tiers.experts > 0 && <Disk disk={state.disk} />}
      <Queue scheduler={state.scheduler} requests={state.requests} />
      <Memory engine={state.engine} />
      <Hardware hardware={state.hardware} />
    </aside>
  );
}
