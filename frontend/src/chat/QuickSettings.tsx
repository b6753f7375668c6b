/** The settings of a chat that one changes often, and the way to all of them. */
import { clsx } from "clsx";
import { Brain, SlidersHorizontal } from "lucide-react";
import { useTranslation } from "react-i18next";
import { changedSettings } from "@/core/settings";
import type { ChatSettings } from "@/core/types";
import { usePrefs } from "@/state/prefs";
import { openSheet } from "@/state/ui";

interface QuickSettingsProps {
  settings: ChatSettings;
  onSettings: (settings: ChatSettings) => void;
}

const CHIP =
  "inline-flex h-7 items-center gap-1.5 rounded-full border px-2.5 text-xs transition-colors";
const OFF = "border-line text-text-2 hover:border-line-strong hover:text-text-1";
const ON = "border-transparent bg-accent-soft text-accent-strong";

export function QuickSettings({ settings, onSettings }: QuickSettingsProps) {
  const { t } = useTranslation();
  const home = usePrefs((prefs) => prefs.base === "");
  const thinking = settings.thinking === true;
  const changed = changedSettings(settings).filter((name) => name !== "thinking").length;
  return (
    <>
      {home && (
        <button
          type="button"
          aria-pressed={thinking}
          title={t("settings.thinkingHint")}
          onClick={() => onSettings({ ...settings, thinking: thinking ? null : true })}
          className={clsx(CHIP, thinking ? ON : OFF)}
        >
          <Brain size={14} aria-hidden="true" />
          {t("composer.think")}
        </button>
      )}
      <button
        type="button"
        onClick={() => openSheet("chat-settings")}
        aria-label={t("settings.open")}
        className={clsx(CHIP, changed > 0 ? ON : OFF)}
      >
        <SlidersHorizontal size={14} aria-hidden="true" />
        <span className="hidden sm:inline">{t("composer.settings")}</span>
        {changed > 0 && <span className="figures">{changed}</span>}
      </button>
    </>
  );
}
