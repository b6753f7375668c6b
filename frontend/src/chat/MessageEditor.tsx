/** Changing a message: what was there stays as a branch. Esc gives up, Ctrl+Enter is done. */
import { useEffect, useRef, useState } from "react";
import { useTranslation } from "react-i18next";
import { Button } from "@/ui/Button";

interface MessageEditorProps {
  text: string;
  action: string;
  onDone: (text: string) => void;
  onCancel: () => void;
}

export function MessageEditor({ text, action, onDone, onCancel }: MessageEditorProps) {
  const { t } = useTranslation();
  const [value, setValue] = useState(text);
  const area = useRef<HTMLTextAreaElement>(null);
  const usable = value.trim() !== "";

  useEffect(() => {
    area.current?.focus();
    area.current?.setSelectionRange(text.length, text.length);
  }, [text]);

  return (
    <div className="flex w-full flex-col gap-2">
      <textarea
        ref={area}
        aria-label={t("chat.editLabel")}
        value={value}
        onChange={(event) => setValue(event.target.value)}
        onKeyDown={(event) => {
          if (event.nativeEvent.isComposing) return;
          if (event.key === "Escape") {
            event.stopPropagation();
            onCancel();
          }
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && usable) onDone(value);
        }}
        className="field field-sizing-content max-h-[50vh] min-h-20 resize-y text-[0.9375rem]"
      />
      <div className="flex justify-end gap-2">
        <Button small onClick={onCancel}>
          {t("common.cancel")}
        </Button>
        <Button small tone="primary" disabled={!usable} onClick={() => onDone(value)}>
          {action}
        </Button>
      </div>
    </div>
  );
}
