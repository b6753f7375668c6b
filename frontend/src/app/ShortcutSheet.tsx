/** The list of all keys. */
import { useTranslation } from "react-i18next";
import { usePrefs } from "@/state/prefs";
import { openSheet, useUi } from "@/state/ui";
import { Kbd } from "@/ui/Kbd";
import { Sheet } from "@/ui/Sheet";
import { SHORTCUTS } from "./shortcuts";

export function ShortcutSheet() {
  const { t } = useTranslation();
  const open = useUi((state) => state.sheet === "shortcuts");
  const sendKey = usePrefs((prefs) => prefs.sendKey);
  const send = sendKey === "enter" ? "Enter" : "Mod+Enter";
  const newline = sendKey === "enter" ? "Shift+Enter" : "Enter";
  const rows = [
    [t("shortcuts.send"), send],
    [t("shortcuts.newline"), newline],
    ...SHORTCUTS.map(({ name, keys }) => [t(`shortcuts.${name}`), keys]),
  ] as const;
  return (
    <Sheet open={open} onClose={() => openSheet(null)} title={t("shortcuts.title")}>
      <dl className="grid gap-x-8 sm:grid-cols-2">
        {rows.map(([words, keys]) => (
          <div
            key={words}
            className="flex items-center justify-between gap-3 border-line border-b py-2"
          >
            <dt className="text-text-2">{words}</dt>
            <dd className="shrink-0">
              <Kbd keys={keys ?? ""} />
            </dd>
          </div>
        ))}
      </dl>
    </Sheet>
  );
}
