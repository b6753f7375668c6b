/** Short notices at the bottom; they go by themselves. */
import { clsx } from "clsx";
import { CircleCheck, TriangleAlert, X } from "lucide-react";
import { useTranslation } from "react-i18next";
import { dismiss, useUi } from "@/state/ui";
import { IconButton } from "@/ui/Button";

export function Notices() {
  const { t } = useTranslation();
  const notices = useUi((state) => state.notices);
  return (
    <div
      role="status"
      className="pointer-events-none fixed inset-x-0 bottom-4 z-50 flex flex-col items-center gap-2 px-4"
    >
      {notices.map(({ id, tone, text }) => {
        const Icon = tone === "info" ? CircleCheck : TriangleAlert;
        return (
          <div
            key={id}
            className="rise pointer-events-auto flex max-w-lg items-center gap-2 rounded-md border border-line bg-surface-1 py-1 pr-1 pl-3 shadow-float"
          >
            <Icon
              size={16}
              aria-hidden="true"
              className={clsx("shrink-0", tone === "info" ? "text-accent" : "text-warn")}
            />
            <span className="min-w-0 [overflow-wrap:anywhere]">{text}</span>
            <IconButton icon={X} label={t("common.close")} small onClick={() => dismiss(id)} />
          </div>
        );
      })}
    </div>
  );
}
