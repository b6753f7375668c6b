/** Whether a model fits this machine, in a few words. */
import { clsx } from "clsx";
import { useTranslation } from "react-i18next";
import type { Fit } from "@/api/installed";
import { type Verdict, verdict } from "@/core/fit";

const LOOKS: Record<Verdict, string> = {
  resident: "bg-accent-soft text-accent-strong",
  streams: "bg-accent-soft text-accent-strong",
  slow: "bg-warn-soft text-warn",
  no: "bg-danger-soft text-danger",
};

export function VerdictMark({ fit }: { fit: Fit }) {
  const { t } = useTranslation();
  const found = verdict(fit);
  return (
    <span
      className={clsx("inline-block rounded-full px-2 py-0.5 font-medium text-xs", LOOKS[found])}
    >
      {t(`models.fit.${found}`)}
    </span>
  );
}
