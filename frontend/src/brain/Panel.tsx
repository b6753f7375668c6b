/** A framed part of the page with a title. */
import type { ReactNode } from "react";

export function Panel({ title, children }: { title: string; children: ReactNode }) {
  return (
    <section aria-label={title} className="rounded-md border border-line bg-surface-1 px-4 py-3">
      <h2 className="eyebrow mb-2">{title}</h2>
      {children}
    </section>
  );
}
