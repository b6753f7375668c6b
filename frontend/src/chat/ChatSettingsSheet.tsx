/** Everything that can be set for one chat. An empty field means what the server does unasked. */
import { useTranslation } from "react-i18next";
import { count } from "@/core/format";
import { type ChatSettings, DEFAULT_SETTINGS } from "@/core/types";
import { useModels } from "@/state/models";
import { usePrefs } from "@/state/prefs";
import { useTalkedTo } from "@/state/telemetry";
import { Button } from "@/ui/Button";
import { Field } from "@/ui/Field";
import { Segments } from "@/ui/Segments";
import { Sheet } from "@/ui/Sheet";
import { NumberField } from "./NumberField";
import { Presets } from "./Presets";

interface ChatSettingsSheetProps {
  open: boolean;
  onClose: () => void;
  settings: ChatSettings;
  onSettings: (settings: ChatSettings) => void;
}

/** Where no server tells its own limit. */
const MOST_TOKENS = 1_000_000;
const MOST_SEED = 2 ** 53 - 1;

export function ChatSettingsSheet(props: ChatSettingsSheetProps) {
  const { open, onClose, settings, onSettings } = props;
  const { t } = useTranslation();
  const set = (change: Partial<ChatSettings>) => onSettings({ ...settings, ...change });
  return (
    <Sheet
      open={open}
      onClose={onClose}
      side="right"
      title={t("settings.chatTitle")}
      description={t("settings.chatText")}
      footer={
        <Button
          tone="quiet"
          onClick={() => onSettings({ ...DEFAULT_SETTINGS, first: settings.first })}
        >
          {t("settings.reset")}
        </Button>
      }
    >
      <div className="flex flex-col gap-5">
        <Presets settings={settings} onSettings={onSettings} />
        <Field label={t("settings.system")} hint={t("settings.systemHint")}>
          {(id, hint) => (
            <textarea
              id={id}
              aria-describedby={hint}
              value={settings.system}
              onChange={(event) => set({ system: event.target.value })}
              rows={5}
              className="field field-sizing-content max-h-72 min-h-24 resize-y"
            />
          )}
        </Field>
        <Sampling settings={settings} set={set} />
        <OwnSettings settings={settings} set={set} />
      </div>
    </Sheet>
  );
}

interface PartProps {
  settings: ChatSettings;
  set: (change: Partial<ChatSettings>) => void;
}

function Sampling({ settings, set }: PartProps) {
  const { t, i18n } = useTranslation();
  const { model } = useModels();
  const usual = useTalkedTo((state) => state.model);
  const most = model?.max_output_tokens ?? model?.context_length ?? MOST_TOKENS;
  return (
    <>
      <NumberField
        label={t("settings.temperature")}
        hint={t("settings.temperatureHint")}
        value={settings.temperature}
        usual={usual?.temperature ?? null}
        limits={{ min: 0, max: 2 }}
        step={0.1}
        slider
        onChange={(temperature) => set({ temperature })}
      />
      <NumberField
        label={t("settings.topP")}
        hint={t("settings.topPHint")}
        value={settings.top_p}
        usual={usual?.top_p ?? null}
        limits={{ min: 0, max: 1 }}
        step={0.05}
        slider
        onChange={(top_p) => set({ top_p })}
      />
      <NumberField
        label={t("settings.maxTokens")}
        hint={t("settings.maxTokensHint", { most: count(most, i18n.language) })}
        value={settings.max_tokens}
        usual={null}
        limits={{ min: 1, max: most, whole: true }}
        step={64}
        onChange={(max_tokens) => set({ max_tokens })}
      />
      <NumberField
        label={t("settings.seed")}
        hint={t("settings.seedHint")}
        value={settings.seed}
        usual={null}
        limits={{ min: 0, max: MOST_SEED, whole: true }}
        step={1}
        onChange={(seed) => set({ seed })}
      />
    </>
  );
}

/** What only our own server understands. */
function OwnSettings({ settings, set }: PartProps) {
  const { t } = useTranslation();
  const home = usePrefs((prefs) => prefs.base === "");
  const slots = useTalkedTo(({ scheduler }) => scheduler.kv_slots) ?? 0;
  if (!home) return <p className="text-text-3 text-xs">{t("settings.foreign")}</p>;
  const thinking = settings.thinking === null ? "usual" : settings.thinking ? "on" : "off";
  return (
    <>
      <Field label={t("settings.thinking")} hint={t("settings.thinkingHint")}>
        {() => (
          <Segments
            label={t("settings.thinking")}
            value={thinking}
            options={[
              { value: "usual", label: t("settings.usual") },
              { value: "on", label: t("settings.on") },
              { value: "off", label: t("settings.off") },
            ]}
            onChange={(value) => set({ thinking: value === "usual" ? null : value === "on" })}
          />
        )}
      </Field>
      {slots > 1 && (
        <Field label={t("settings.slot")} hint={t("settings.slotHint")}>
          {(id, hint) => (
            <select
              id={id}
              aria-describedby={hint}
              value={settings.slot ?? ""}
              onChange={({ target }) =>
                set({ slot: target.value === "" ? null : Number(target.value) })
              }
              className="field"
            >
              <option value="">{t("settings.slotAny")}</option>
              {Array.from({ length: slots }, (_, slot) => slot).map((slot) => (
                <option key={slot} value={slot}>
                  {slot}
                </option>
              ))}
            </select>
          )}
        </Field>
      )}
    </>
  );
}
