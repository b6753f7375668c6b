/** One sentence: what keeps the next token from coming sooner. */
import { useTranslation } from "react-i18next";
import type { LiveState } from "@/api/livestate";

const CODES = [
  "idle",
  "loading",
  "unloaded",
  "prefill_disk",
  "prefill_compute",
  "decode_disk",
  "decode_experts",
  "decode_attention",
  "decode_head",
  "decode_other",
  "queue",
  "memory",
] as const;
type Code = (typeof CODES)[number];

interface BottleneckProps {
  bottleneck: LiveState["bottleneck"];
  engine: LiveState["engine"];
}

export function Bottleneck({ bottleneck, engine }: BottleneckProps) {
  const { t, i18n } = useTranslation();
  const known = CODES.find((code): code is Code => code === bottleneck.code);
  // The server's own sentence has the numbers; it is English.
  const words =
    i18n.language !== "en" && known
      ? t(`bottleneck.${known}`)
      : bottleneck.text || t("bottleneck.idle");
  return (
    <section aria-label={t("runtime.bottleneck")} className="px-4 py-3">
      <p className="text-[0.8125rem] leading-relaxed">{words}</p>
      {engine.last_failure && engine.restarts > 0 && (
        <p className="mt-1 text-warn text-xs">
          {t("runtime.restarted", { count: engine.restarts, reason: engine.last_failure })}
        </p>
      )}
    </section>
  );
}
