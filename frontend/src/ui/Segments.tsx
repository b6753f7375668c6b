/** One choice of a few, side by side. */
import { clsx } from "clsx";
import { RadioGroup } from "radix-ui";

interface SegmentsProps<T extends string> {
  label: string;
  value: T;
  options: readonly { value: T; label: string }[];
  onChange: (value: T) => void;
}

export function Segments<T extends string>({ label, value, options, onChange }: SegmentsProps<T>) {
  return (
    <RadioGroup.Root
      aria-label={label}
      value={value}
      onValueChange={(next) => onChange(next as T)}
      orientation="horizontal"
      className="inline-flex max-w-full self-start flex-wrap rounded-sm border border-line-strong bg-surface-2 p-0.5"
    >
      {options.map((option) => (
        <RadioGroup.Item
          key={option.value}
          value={option.value}
          className={clsx(
            "h-7 rounded-[4px] px-3 text-xs transition-colors",
            option.value === value
              ? "bg-surface-1 font-medium text-text-1 shadow-sm"
              : "text-text-2 hover:text-text-1",
          )}
        >
          {option.label}
        </RadioGroup.Item>
      ))}
    </RadioGroup.Root>
  );
}
