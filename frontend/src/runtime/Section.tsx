/** Pieces of the runtime panel: a section, a row of a name and a value, a bar of shares. */
import type { ReactNode } from "react";
import { percent } from "@/core/format";

export function Section({ title, children }: { title: string; children: ReactNode }) {
  return (
    <section aria-label={title} className="px-4 py-3">
      <h2 className="eyebrow mb-2">{title}</h2>
      {children}
    </section>
  );
}

export function Row({
  name,
  children,
  note,
}: {
  name: string;
  children: ReactNode;
  note?: string;
}) {
  return (
    <div className="flex items-baseline justify-between gap-3 py-0.5 text-xs" title={note}>
      <span className="shrink-0 text-text-2">{name}</span>
      <span className="min-w-0 truncate text-right">{children}</span>
    </div>
  );
}

/** A share of a whole, 0 to 1. */
export function Gauge({ label, share }: { label: string; share: number }) {
  const part = Math.min(1, Math.max(0, share));
  return (
    // biome-ignore lint/a11y/useSemanticElements: browsers draw <meter> each in their own way
    <div
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(part * 100)}
      aria-valuetext={percent(part)}
      className="my-1 h-1.5 overflow-hidden rounded-full bg-surface-3"
    >
      <div
        className={part > 0.92 ? "h-full bg-warn" : "h-full bg-accent"}
        style={{ width: `${part * 100}%` }}
      />
    </div>
  );
}

export interface Share {
  name: string;
  value: number;
  /** CSS background; patterns tell neighbours apart without colour. */
  background: string;
  text: string;
}

/** Parts of a whole, as a bar and as a list that says the same in words. */
export function Shares({ parts }: { parts: Share[] }) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  const shown = parts.filter((part) => part.value > 0);
  return (
    <>
      <div
        aria-hidden="true"
        className="flex h-2.5 gap-px overflow-hidden rounded-full bg-surface-3"
      >
        {total > 0 &&
          shown.map((part) => (
            <div
              key={part.name}
              style={{
                width: `${(part.value / total) * 100}%`,
                minWidth: 2,
                background: part.background,
              }}
            />
          ))}
      </div>
      <ul className="mt-2 space-y-0.5">
        {parts.map((part) => (
          <li key={part.name} className="flex items-center gap-2 text-xs">
            <span
              aria-hidden="true"
              className="size-2.5 shrink-0 rounded-[3px]"
              style={{ background: part.background }}
            />
            <span className="grow text-text-2">{part.name}</span>
            <span>{part.text}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

/** Slanted lines in a colour, at one of a few densities. */
export function hatched(colour: string, gap: number): string {
  return `repeating-linear-gradient(45deg, ${colour} 0 2px, color-mix(in srgb, ${colour} 45%, transparent) 2px ${gap}px)`;
}
