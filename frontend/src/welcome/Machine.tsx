/** First step: what this computer has. */
import { Cpu, Gpu, MemoryStick } from "lucide-react";
import { useTranslation } from "react-i18next";
import type { LiveState } from "@/api/livestate";
import { bytes } from "@/core/format";

export function Machine({ hardware }: { hardware: LiveState["hardware"] | undefined }) {
  const { t, i18n } = useTranslation();
  if (!hardware) return <p aria-busy="true">{t("first.looking")}</p>;
  const { cpu, ram, gpus } = hardware;
  const size = (value: number) => bytes(value, i18n.language);
  const lines = [
    {
      icon: Cpu,
      name: t("first.processor"),
      text: cpu.name || cpu.architecture,
      note: t("first.cores", { cores: cpu.cores, threads: cpu.threads }),
    },
    ...(ram.total_bytes === null
      ? []
      : [
          {
            icon: MemoryStick,
            name: t("first.memory"),
            text: size(ram.total_bytes),
            note:
              ram.available_bytes === null
                ? ""
                : t("first.free", { size: size(ram.available_bytes) }),
          },
        ]),
    {
      icon: Gpu,
      name: t("first.graphics"),
      text: gpus.map(({ name }) => name).join(", ") || t("hardware.noGpu"),
      note: hardware.gpu_problem || hardware.note,
    },
  ];
  return (
    <dl className="grid gap-3 sm:grid-cols-3">
      {lines.map(({ icon: Icon, name, text, note }) => (
        <div key={name} className="rounded-md border border-line bg-surface-1 p-3">
          <dt className="flex items-center gap-2 text-text-2 text-xs">
            <Icon size={15} aria-hidden="true" className="text-accent" />
            {name}
          </dt>
          <dd className="mt-1 font-medium [overflow-wrap:anywhere]">
            {text}
            {note && <span className="block font-normal text-text-2 text-xs">{note}</span>}
          </dd>
        </div>
      ))}
    </dl>
  );
}
