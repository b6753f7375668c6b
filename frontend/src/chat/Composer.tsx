/** Where messages are written: text, files, the chat's settings at hand, sending and stopping. */
import { ArrowUp, Paperclip, Square } from "lucide-react";
import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import { useTranslation } from "react-i18next";
import { MiniBrain } from "@/brain/MiniBrain";
import type { Tree } from "@/core/tree";
import type { ChatSettings, Part } from "@/core/types";
import { usePrefs } from "@/state/prefs";
import { stop, useTurns } from "@/state/turns";
import { setDraft, useUi } from "@/state/ui";
import { IconButton } from "@/ui/Button";
import { chooseFiles } from "@/ui/files";
import { ContextMeter, SendingHint } from "./ContextMeter";
import { FileChip } from "./FileChip";
import { QuickSettings } from "./QuickSettings";
import { useAttachments } from "./useAttachments";
import { useEstimate } from "./useEstimate";

/** In the field's last line; where the margin has room, in the corner and larger. */
const MINI_BRAIN =
  "mx-0.5 block h-7 w-9 sm:mx-1 sm:w-24 @min-[80rem]:absolute @min-[80rem]:right-6 @min-[80rem]:bottom-4 @min-[80rem]:h-16 @min-[80rem]:w-48";

interface ComposerProps {
  chatId: string | null;
  tree: Tree | null;
  settings: ChatSettings;
  onSettings: (settings: ChatSettings) => void;
  onSend: (parts: Part[]) => void;
}

export function Composer({ chatId, tree, settings, onSettings, onSend }: ComposerProps) {
  const { t } = useTranslation();
  const slot = chatId ?? "";
  const draft = useUi.getState().drafts[slot];
  const [text, setText] = useState(draft?.text ?? "");
  const { files, setFiles, addFiles, dropProps, dropping } = useAttachments(draft?.files ?? []);
  const area = useRef<HTMLTextAreaElement>(null);
  const sendKey = usePrefs((prefs) => prefs.sendKey);
  const running = useTurns(
    ({ turns }) => Object.values(turns).find((turn) => turn.chatId === chatId)?.messageId,
  );
  const estimate = useEstimate(tree, settings, text, files);
  const usable = text.trim() !== "" || files.length > 0;

  // What is not sent yet is there again when the chat is.
  useEffect(() => {
    const timer = setTimeout(() => setDraft(slot, usable ? { text, files } : null), 300);
    return () => clearTimeout(timer);
  }, [slot, text, files, usable]);

  function submit(): void {
    if (!usable || running !== undefined) return;
    onSend([...files, ...(text.trim() === "" ? [] : [{ type: "text" as const, text }])]);
    setText("");
    setFiles([]);
    setDraft(slot, null);
    area.current?.focus();
  }

  function onKeyDown(event: KeyboardEvent<HTMLTextAreaElement>): void {
    // While an input method composes, Enter belongs to it. (229: Safari ends composing first.)
    if (event.nativeEvent.isComposing || event.keyCode === 229 || event.key !== "Enter") return;
    const wanted =
      sendKey === "enter" ? !event.shiftKey && !event.altKey : event.ctrlKey || event.metaKey;
    if (!wanted) return;
    event.preventDefault();
    submit();
  }

  return (
    <div className="@container relative px-3 pb-3 sm:px-6 sm:pb-4">
      <div className="mx-auto max-w-[var(--measure)]">
        <SendingHint estimate={estimate} />
        <div
          {...dropProps}
          className={`rounded-lg border bg-surface-1 shadow-float transition-colors focus-within:border-accent ${dropping ? "border-accent border-dashed" : "border-line-strong"}`}
        >
          {files.length > 0 && (
            <div className="flex flex-wrap gap-1.5 px-3 pt-3">
              {files.map((file) => (
                <FileChip
                  key={file.name}
                  name={file.name}
                  text={file.text}
                  onRemove={() => setFiles(files.filter((other) => other !== file))}
                />
              ))}
            </div>
          )}
          <textarea
            ref={area}
            id="composer"
            rows={1}
            value={text}
            aria-label={t("composer.label")}
            placeholder={t("composer.placeholder")}
            onChange={(event) => setText(event.target.value)}
            onKeyDown={onKeyDown}
            onPaste={(event) => {
              if (event.clipboardData.files.length === 0) return;
              event.preventDefault();
              void addFiles([...event.clipboardData.files]);
            }}
            className="field-sizing-content block max-h-[40vh] min-h-12 w-full resize-none bg-transparent px-4 pt-3.5 pb-1 text-[0.9375rem] outline-none placeholder:text-text-3"
          />
          <div className="flex flex-wrap items-center gap-1 px-2 pb-2">
            <IconButton
              icon={Paperclip}
              label={t("composer.attach")}
              id="composer-attach"
              onClick={() => void chooseFiles("", true).then(addFiles)}
            />
            <QuickSettings settings={settings} onSettings={onSettings} />
            <span className="grow" />
            <MiniBrain className={MINI_BRAIN} />
            <ContextMeter estimate={estimate} />
            {running === undefined ? (
              <button
                type="button"
                aria-label={t("composer.send")}
                disabled={!usable}
                onClick={submit}
                className="ml-1 inline-flex size-9 items-center justify-center rounded-full bg-accent text-on-accent transition-colors hover:bg-accent-strong disabled:bg-surface-3 disabled:text-text-3"
              >
                <ArrowUp size={18} aria-hidden="true" />
              </button>
            ) : (
              <button
                type="button"
                aria-label={t("composer.stop")}
                onClick={() => stop(running)}
                className="ml-1 inline-flex size-9 items-center justify-center rounded-full bg-ruby text-surface-1 transition-opacity hover:opacity-85"
              >
                <Square size={13} fill="currentColor" aria-hidden="true" />
              </button>
            )}
          </div>
        </div>
      </div>
    </div>
  );
}
