/** Settings under a name: apply one, keep the current ones, throw one away. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Save, Trash2 } from "lucide-react";
import { type FormEvent, useState } from "react";
import { useTranslation } from "react-i18next";
import { newId } from "@/core/ids";
import type { ChatSettings, Preset } from "@/core/types";
import { chatStore } from "@/state/chatstore";
import { keys } from "@/state/queries";
import { notify } from "@/state/ui";
import { IconButton } from "@/ui/Button";
import { Field } from "@/ui/Field";

interface PresetsProps {
  settings: ChatSettings;
  onSettings: (settings: ChatSettings) => void;
}

export function Presets({ settings, onSettings }: PresetsProps) {
  const { t } = useTranslation();
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState("");
  const { data: presets = [] } = useQuery({
    queryKey: keys.presets,
    queryFn: async () => (await chatStore()).presets(),
  });

  function apply(id: string): void {
    setChosen(id);
    const preset = presets.find((entry) => entry.id === id);
    if (preset) onSettings({ ...preset.settings, first: settings.first });
  }

  async function change(task: Promise<void>): Promise<void> {
    try {
      await task;
      await client.invalidateQueries({ queryKey: keys.presets });
    } catch (error) {
      notify("problem", t("settings.presetProblem", { reason: String(error) }));
    }
  }

  function keep(event: FormEvent): void {
    event.preventDefault();
    const clean = name.trim();
    if (clean === "") return;
    const old = presets.find((entry) => entry.name === clean);
    const preset: Preset = {
      id: old?.id ?? newId(),
      name: clean,
      settings: { ...settings, first: null },
    };
    void change(chatStore().then((store) => store.putPreset(preset)));
    setName("");
    setChosen(preset.id);
  }

  return (
    <div className="flex flex-col gap-2">
      {presets.length > 0 && (
        <Field label={t("settings.preset")}>
          {(id) => (
            <div className="flex items-center gap-1">
              <select
                id={id}
                value={chosen}
                onChange={(event) => apply(event.target.value)}
                className="field"
              >
                <option value="">{t("settings.presetNone")}</option>
                {presets.map((preset) => (
                  <option key={preset.id} value={preset.id}>
                    {preset.name}
                  </option>
                ))}
              </select>
              <IconButton
                icon={Trash2}
                label={t("settings.presetDelete")}
                disabled={chosen === ""}
                onClick={() => {
                  void change(chatStore().then((store) => store.removePreset(chosen)));
                  setChosen("");
                }}
              />
            </div>
          )}
        </Field>
      )}
      <form onSubmit={keep} className="flex items-center gap-1">
        <input
          aria-label={t("settings.presetName")}
          placeholder={t("settings.presetName")}
          value={name}
          maxLength={80}
          onChange={(event) => setName(event.target.value)}
          className="field"
        />
        <IconButton
          icon={Save}
          label={t("settings.presetSave")}
          type="submit"
          disabled={name.trim() === ""}
        />
      </form>
    </div>
  );
}
