/** What is asked before a model is loaded: options, what to do with running answers, or at any price. */
import { type FormEvent, useEffect, useState } from "react";
import { useTranslation } from "react-i18next";
import type { LoadWishes } from "@/api/installed";
import { useTelemetry } from "@/state/telemetry";
import { Button } from "@/ui/Button";
import { Field } from "@/ui/Field";
import { Sheet } from "@/ui/Sheet";
import type { Actions } from "./useActions";

export type LoadQuestion =
  | { kind: "options"; name: string }
  | { kind: "busy"; name: string; wishes: LoadWishes }
  | { kind: "busy-unload"; name: string }
  | { kind: "tight"; name: string; wishes: LoadWishes; message: string };

interface LoadDialogProps {
  question: LoadQuestion | null;
  actions: Actions;
  onClose: () => void;
}

export function LoadDialog({ question, actions, onClose }: LoadDialogProps) {
  if (question?.kind === "options")
    return <Options name={question.name} actions={actions} onClose={onClose} />;
  if (question?.kind === "tight")
    return <Tight question={question} actions={actions} onClose={onClose} />;
  return <Busy question={question} actions={actions} onClose={onClose} />;
}

/** Answers are being given: they can be waited for, or ended. */
function Busy({ question, actions, onClose }: LoadDialogProps) {
  const { t } = useTranslation();
  const running = useTelemetry(({ state }) => state?.scheduler.active ?? 0);
  const go = (when: "idle" | "now") => {
    onClose();
    if (question?.kind === "busy") void actions.load(question.name, { ...question.wishes, when });
    if (question?.kind === "busy-unload") void actions.unload(question.name, when);
  };
  return (
    <Sheet
      open={question !== null}
      onClose={onClose}
      title={t("models.busy")}
      footer={
        <>
          <Button onClick={onClose}>{t("common.cancel")}</Button>
          <Button tone="danger" onClick={() => go("now")}>
            {t("models.endThem")}
          </Button>
          <Button tone="primary" onClick={() => go("idle")}>
            {t("models.waitForThem")}
          </Button>
        </>
      }
    >
      <p className="text-text-2">{t("models.busyText", { count: Math.max(running, 1) })}</p>
    </Sheet>
  );
}

function Tight({
  question,
  actions,
  onClose,
}: LoadDialogProps & { question: Extract<LoadQuestion, { kind: "tight" }> }) {
  const { t } = useTranslation();
  return (
    <Sheet
      open
      onClose={onClose}
      title={t("models.tight", { name: question.name })}
      footer={
        <>
          <Button onClick={onClose}>{t("common.cancel")}</Button>
          <Button
            tone="danger"
            onClick={() => {
              onClose();
              void actions.load(question.name, { ...question.wishes, force: true });
            }}
          >
            {t("models.loadAnyway")}
          </Button>
        </>
      }
    >
      <p className="text-text-2">{t("models.tightText")}</p>
      <p className="code mt-3 whitespace-pre-wrap text-text-2">{question.message}</p>
    </Sheet>
  );
}

function Options({
  name,
  actions,
  onClose,
}: {
  name: string;
  actions: Actions;
  onClose: () => void;
}) {
  const { t } = useTranslation();
  const slots = useTelemetry(({ state }) => state?.scheduler.kv_slots ?? 1);
  const [ctx, setCtx] = useState("");
  const [kvSlots, setKvSlots] = useState(String(slots));
  useEffect(() => setKvSlots(String(slots)), [slots]);

  function submit(event: FormEvent): void {
    event.preventDefault();
    onClose();
    void actions.load(name, {
      ctx: ctx.trim() === "" ? 0 : Number(ctx),
      kv_slots: Number(kvSlots),
    });
  }

  return (
    <Sheet
      open
      onClose={onClose}
      title={t("models.optionsOf", { name })}
      footer={
        <>
          <Button onClick={onClose}>{t("common.cancel")}</Button>
          <Button tone="primary" type="submit" form="load-options">
            {t("models.load")}
          </Button>
        </>
      }
    >
      <form id="load-options" onSubmit={submit} className="flex flex-col gap-4">
        <NumberInput
          label={t("models.context")}
          hint={t("models.contextHint")}
          min={64}
          max={10_000_000}
          placeholder={t("models.contextAuto")}
          value={ctx}
          onChange={setCtx}
        />
        <NumberInput
          label={t("models.slots")}
          hint={t("models.slotsHint")}
          min={1}
          max={16}
          required
          value={kvSlots}
          onChange={setKvSlots}
        />
      </form>
    </Sheet>
  );
}

interface NumberInputProps {
  label: string;
  hint: string;
  min: number;
  max: number;
  placeholder?: string;
  required?: boolean;
  /** As typed. */
  value: string;
  onChange: (value: string) => void;
}

/** A whole number. */
function NumberInput({ label, hint, onChange, ...input }: NumberInputProps) {
  return (
    <Field label={label} hint={hint}>
      {(id, described) => (
        <input
          {...input}
          id={id}
          aria-describedby={described}
          type="number"
          step={1}
          onChange={(event) => onChange(event.target.value)}
          className="field"
        />
      )}
    </Field>
  );
}
