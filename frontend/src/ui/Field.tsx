/** A label, its control, and a sentence about it. */
import { type ReactNode, useId } from "react";

interface FieldProps {
  label: string;
  hint?: ReactNode;
  /** Shown at the right of the label. */
  value?: ReactNode;
  children: (id: string, hintId: string) => ReactNode;
}

export function Field({ label, hint, value, children }: FieldProps) {
  const id = useId();
  return (
    <div className="flex flex-col gap-1.5">
      <div className="flex items-baseline justify-between gap-2">
        <label htmlFor={id} className="font-medium text-text-1">
          {label}
        </label>
        {value !== undefined && <span className="figures text-text-2 text-xs">{value}</span>}
      </div>
      {children(id, `${id}-hint`)}
      {hint && (
        <p id={`${id}-hint`} className="text-text-3 text-xs">
          {hint}
        </p>
      )}
    </div>
  );
}
