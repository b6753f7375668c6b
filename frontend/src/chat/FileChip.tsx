/** An attached text file: its name and size; a click shows what is in it. */
import { FileText, X } from "lucide-react";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { bytes } from "@/core/format";
import { IconButton } from "@/ui/Button";
import { Sheet } from "@/ui/Sheet";

interface FileChipProps {
  name: string;
  text: string;
  onRemove?: () => void;
}

export function FileChip({ name, text, onRemove }: FileChipProps) {
  const { t, i18n } = useTranslation();
  const [open, setOpen] = useState(false);
  return (
    <span className="inline-flex max-w-full items-center rounded-sm border border-line bg-surface-1">
      <button
        type="button"
        onClick={() => setOpen(true)}
        className="flex min-w-0 items-center gap-1.5 px-2 py-1 text-xs hover:text-accent"
      >
        <FileText size={14} aria-hidden="true" className="shrink-0 text-accent" />
        <span className="truncate">{name}</span>
        <span className="figures shrink-0 text-text-3">
          {bytes(new Blob([text]).size, i18n.language)}
        </span>
      </button>
      {onRemove && (
        <IconButton icon={X} label={t("chat.removeFile", { name })} small onClick={onRemove} />
      )}
      <Sheet open={open} onClose={() => setOpen(false)} title={name} wide>
        <pre className="code whitespace-pre-wrap">{text}</pre>
      </Sheet>
    </span>
  );
}
