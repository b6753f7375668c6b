/** A number that may be left to the server: a field, and a slider where the range is small. */
import { X } from "lucide-react";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { typedNumber } from "@/core/settings";
import { IconButton } from "@/ui/Button";
import { Field } from "@/ui/Field";

interface NumberFieldProps {
  label: string;
  hint: string;
  value: number | null;
  /** What the server takes unasked, if it says so. */
  usual: number | null;
  limits: { min: number; max: number; whole?: boolean };
  step: number;
  slider?: boolean;
  onChange: (value: number | null) => void;
}

export function NumberField(props: NumberFieldProps) {
  const { label, hint, value, usual, limits, step, slider, onChange } = props;
  const { t } = useTranslation();
  const [typing, setTyping] = useState<string | null>(null);
  const usually = usual === null ? t("settings.serverDefault") : String(usual);
  return (
    <Field label={label} hint={hint}>
      {(id, hintId) => (
        <div className="flex items-center gap-3">
          {slider && (
            <input
              type="range"
              aria-label={label}
              min={limits.min}
              max={limits.max}
              step={step}
              value={value ?? usual ?? limits.max / 2}
              onChange={(event) => onChange(Number(event.target.value))}
              className={`min-w-0 grow accent-accent ${value === null ? "opacity-45" : ""}`}
            />
          )}
          <span className={`relative ${slider ? "w-32 shrink-0" : "w-full"}`}>
            <input
              id={id}
              aria-describedby={hintId}
              inputMode={limits.whole ? "numeric" : "decimal"}
              value={typing ?? value ?? ""}
              placeholder={usually}
              onChange={(event) => setTyping(event.target.value)}
              onBlur={() => {
                if (typing !== null) onChange(typedNumber(typing, limits));
                setTyping(null);
              }}
              onKeyDown={(event) => event.key === "Enter" && event.currentTarget.blur()}
              className="field figures pr-8"
            />
            {value !== null && (
              <IconButton
                icon={X}
                label={t("settings.toDefault", { name: label })}
                small
                onClick={() => onChange(null)}
                className="absolute top-1/2 right-0.5 -translate-y-1/2"
              />
            )}
          </span>
        </div>
      )}
    </Field>
  );
}
