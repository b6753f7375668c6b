/** The model that answers, whether its server can be reached, and the choice where there are more. */
import { clsx } from "clsx";
import { ChevronDown } from "lucide-react";
import { useTranslation } from "react-i18next";
import { count } from "@/core/format";
import { useModels } from "@/state/models";
import { setPrefs } from "@/state/prefs";
import { useTalkedTo } from "@/state/telemetry";
import { Menu } from "@/ui/Menu";

export function ModelPicker() {
  const { t, i18n } = useTranslation();
  const { models, model, error, loading } = useModels();
  const engine = useTalkedTo((state) => state.engine.state);
  const ready = !error && (engine === null || engine === "ready");
  const words = error
    ? t("model.unreachable")
    : loading
      ? t("model.looking")
      : (model?.id ?? t("model.none"));
  const label = (
    <>
      <span
        aria-hidden="true"
        className={clsx(
          "size-2 shrink-0 rounded-full",
          error ? "bg-danger" : ready ? "bg-accent" : "bg-warn",
        )}
      />
      <span className="truncate">{words}</span>
    </>
  );
  const look =
    "flex h-8 min-w-0 max-w-[38vw] items-center gap-2 rounded-sm px-2 text-xs sm:max-w-60";
  if (models.length < 2) {
    return (
      <span className={clsx(look, "text-text-2")} title={error?.message ?? words}>
        {label}
      </span>
    );
  }
  return (
    <Menu
      trigger={
        <button
          type="button"
          aria-label={t("model.choose", { model: words })}
          className={clsx(look, "text-text-2 hover:bg-surface-2 hover:text-text-1")}
        >
          {label}
          <ChevronDown size={14} aria-hidden="true" className="shrink-0" />
        </button>
      }
      groups={[
        models.map(({ id, context_length }) => ({
          label: id,
          ...(context_length !== null && {
            note: t("model.context", { number: count(context_length, i18n.language) }),
          }),
          checked: id === model?.id,
          onSelect: () => setPrefs({ model: id }),
        })),
      ]}
    />
  );
}
