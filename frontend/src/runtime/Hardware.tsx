/** The machine: processor, memory, graphics cards as far as the probe could measure them. */
import { useTranslation } from "react-i18next";
import type { Gpu, LiveState } from "@/api/livestate";
import { bytes, count, percent } from "@/core/format";
import { Gauge, Row, Section } from "./Section";

export function Hardware({ hardware }: { hardware: LiveState["hardware"] }) {
  const { t, i18n } = useTranslation();
  const { cpu, ram, gpus } = hardware;
  const size = (value: number) => bytes(value, i18n.language);
  const used =
    ram.total_bytes === null || ram.available_bytes === null
      ? null
      : ram.total_bytes - ram.available_bytes;
  return (
    <Section title={t("hardware.title")}>
      <p className="truncate text-xs" title={cpu.name}>
        {cpu.name || cpu.architecture}
      </p>
      <Row name={t("hardware.cores")}>
        {t("hardware.coresOf", { cores: cpu.cores, threads: cpu.threads })}
        {cpu.load !== null && ` · ${percent(cpu.load)}`}
      </Row>
      {cpu.load !== null && <Gauge label={t("hardware.cpu")} share={cpu.load} />}
      {ram.total_bytes !== null && used !== null && (
        <>
          <Row name={t("hardware.ram")} note={t("hardware.ours", { size: size(ram.ours_bytes) })}>
            {size(used)} / {size(ram.total_bytes)}
          </Row>
          <Gauge label={t("hardware.ram")} share={used / ram.total_bytes} />
        </>
      )}
      {gpus.map((gpu) => (
        <GpuRows key={gpu.index} gpu={gpu} size={size} />
      ))}
      {gpus.length === 0 && <Row name="GPU">{t("hardware.noGpu")}</Row>}
      {[hardware.gpu_problem, hardware.note].filter(Boolean).map((text) => (
        <p key={text} className="mt-1 text-text-3 text-xs">
          {text}
        </p>
      ))}
    </Section>
  );
}

/** Only what was measured. */
function GpuRows({ gpu, size }: { gpu: Gpu; size: (value: number) => string }) {
  const { t, i18n } = useTranslation();
  const { memory_total_bytes: total, memory_used_bytes: used, load } = gpu;
  return (
    <div className="mt-1">
      <p className="truncate text-xs" title={gpu.name}>
        {gpu.name}
        {load !== null && ` · ${percent(load)}`}
      </p>
      {total !== null && (
        <Row name="VRAM">{used === null ? size(total) : `${size(used)} / ${size(total)}`}</Row>
      )}
      {total !== null && used !== null && <Gauge label="VRAM" share={used / total} />}
      <Row name={t("hardware.gpuExperts")}>{count(gpu.experts, i18n.language)}</Row>
    </div>
  );
}
