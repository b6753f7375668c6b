/** A state that is told in words: an icon, a title, a sentence, and what can be done. */
import type { LucideIcon } from "lucide-react";
import type { ReactNode } from "react";

interface StateProps {
  icon: LucideIcon;
  title: string;
  text: ReactNode;
  actions?: ReactNode;
}

export function State({ icon: Icon, title, text, actions }: StateProps) {
  return (
    <div className="m-auto flex max-w-md flex-col items-center gap-3 p-6 text-center">
      <Icon size={28} aria-hidden="true" className="text-accent" />
      <h2 className="font-semibold text-base">{title}</h2>
      <div className="text-text-2">{text}</div>
      {actions && <div className="mt-1 flex flex-wrap justify-center gap-2">{actions}</div>}
    </div>
  );
}
