/** Buttons: with words, and with an icon alone, which then has its words as a label and a tip. */
import { clsx } from "clsx";
import type { LucideIcon } from "lucide-react";
import { Tooltip } from "radix-ui";
import type { ButtonHTMLAttributes, ReactNode, Ref } from "react";

type Tone = "primary" | "plain" | "quiet" | "danger";

const TONES: Record<Tone, string> = {
  primary: "bg-accent text-on-accent hover:bg-accent-strong border-transparent",
  plain: "bg-surface-1 text-text-1 hover:bg-surface-2 border-line-strong",
  quiet: "bg-transparent text-text-2 hover:bg-surface-2 hover:text-text-1 border-transparent",
  danger: "bg-surface-1 text-danger hover:bg-danger-soft border-line-strong",
};

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  tone?: Tone;
  icon?: LucideIcon;
  small?: boolean;
  children: ReactNode;
}

export function Button({
  tone = "plain",
  icon: Icon,
  small,
  className,
  children,
  ...rest
}: ButtonProps) {
  return (
    <button
      type="button"
      className={clsx(
        "inline-flex items-center justify-center gap-1.5 rounded-sm border font-medium transition-colors disabled:opacity-50",
        small ? "h-7 px-2.5 text-xs" : "h-9 px-3.5",
        TONES[tone],
        className,
      )}
      {...rest}
    >
      {Icon && <Icon size={small ? 14 : 16} aria-hidden="true" className="shrink-0" />}
      {children}
    </button>
  );
}

interface IconButtonProps extends Omit<ButtonHTMLAttributes<HTMLButtonElement>, "children"> {
  icon: LucideIcon;
  label: string;
  /** What to press instead, shown in the tip. */
  keys?: string | undefined;
  small?: boolean;
  active?: boolean;
  ref?: Ref<HTMLButtonElement>;
}

export function IconButton({
  icon: Icon,
  label,
  keys,
  small,
  active,
  className,
  ...rest
}: IconButtonProps) {
  return (
    <Tooltip.Root delayDuration={400}>
      <Tooltip.Trigger asChild>
        <button
          type="button"
          aria-label={label}
          className={clsx(
            "inline-flex shrink-0 items-center justify-center rounded-sm text-text-2 transition-colors hover:bg-surface-3 hover:text-text-1 disabled:opacity-40 disabled:hover:bg-transparent",
            small ? "size-7" : "size-9",
            active && "bg-accent-soft text-accent-strong",
            className,
          )}
          {...rest}
        >
          <Icon size={small ? 15 : 18} aria-hidden="true" />
        </button>
      </Tooltip.Trigger>
      <Tip>
        {label}
        {keys && <span className="ml-2 opacity-70">{keys}</span>}
      </Tip>
    </Tooltip.Root>
  );
}

function Tip({ children }: { children: ReactNode }) {
  return (
    <Tooltip.Portal>
      <Tooltip.Content
        sideOffset={6}
        collisionPadding={8}
        className="rise z-50 max-w-72 rounded-sm bg-text-1 px-2 py-1 text-surface-1 text-xs shadow-float"
      >
        {children}
      </Tooltip.Content>
    </Tooltip.Portal>
  );
}
