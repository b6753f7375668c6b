/** The server that is talked to: the one of this page, or any other of the OpenAI kind. */
import { CircleCheck, CircleX } from "lucide-react";
import { type FormEvent, useState } from "react";
import { useTranslation } from "react-i18next";
import { HttpError } from "@/api/http";
import { listModels } from "@/api/openai";
import { setPrefs, usePrefs } from "@/state/prefs";
import { queryClient } from "@/state/queries";
import { cleanBase } from "@/state/session";
import { Button } from "@/ui/Button";
import { Field } from "@/ui/Field";

type Result = { ok: true; text: string } | { ok: false; text: string; hint: string };

const TEST_MS = 15_000;

export function ConnectionForm() {
  const { t } = useTranslation();
  const prefs = usePrefs();
  const [base, setBase] = useState(prefs.base);
  const [key, setKey] = useState(prefs.key);
  const [busy, setBusy] = useState(false);
  const [result, setResult] = useState<Result | null>(null);
  const url = cleanBase(base);

  async function test(): Promise<Result> {
    const server = { base: url || `${location.origin}/v1`, key: url ? key : null, own: url === "" };
    try {
      const models = await listModels(server, AbortSignal.timeout(TEST_MS));
      return { ok: true, text: t("prefs.reached", { count: models.length }) };
    } catch (error) {
      if (!(error instanceof HttpError)) {
        return { ok: false, text: t("prefs.notReached"), hint: t("prefs.notReachedHint") };
      }
      const login = error.status === 401 || error.status === 403;
      return { ok: false, text: error.message, hint: login ? t("prefs.keyHint") : "" };
    }
  }

  async function save(event: FormEvent): Promise<void> {
    event.preventDefault();
    if (url !== "" && !/^https?:\/\/./i.test(url)) {
      setResult({ ok: false, text: t("prefs.notAddress"), hint: "" });
      return;
    }
    setBusy(true);
    setResult(await test());
    setBusy(false);
    setPrefs({ base: url, key: url === "" ? "" : key, model: null });
    setBase(url);
    void queryClient.invalidateQueries({ queryKey: ["models"] });
  }

  return (
    <form onSubmit={(event) => void save(event)} className="flex flex-col gap-4">
      <Field label={t("prefs.base")} hint={t("prefs.baseHint")}>
        {(id, hint) => (
          <input
            id={id}
            aria-describedby={hint}
            type="text"
            inputMode="url"
            autoComplete="off"
            spellCheck={false}
            placeholder={`${location.origin}/v1`}
            value={base}
            onChange={(event) => setBase(event.target.value)}
            className="field"
          />
        )}
      </Field>
      {url !== "" && (
        <Field label={t("prefs.key")} hint={t("prefs.keyStored")}>
          {(id, hint) => (
            <input
              id={id}
              aria-describedby={hint}
              type="password"
              autoComplete="off"
              value={key}
              onChange={(event) => setKey(event.target.value)}
              className="field"
            />
          )}
        </Field>
      )}
      <div className="flex flex-wrap items-center gap-3">
        <Button tone="primary" type="submit" disabled={busy}>
          {busy ? t("prefs.testing") : t("prefs.save")}
        </Button>
        {result && <ResultLine result={result} />}
      </div>
      {url !== "" && <p className="text-text-3 text-xs">{t("prefs.foreignNote")}</p>}
    </form>
  );
}

function ResultLine({ result }: { result: Result }) {
  const Icon = result.ok ? CircleCheck : CircleX;
  return (
    <p role="status" className={result.ok ? "text-accent" : "text-danger"}>
      <Icon size={15} aria-hidden="true" className="mr-1.5 inline" />
      {result.text}
      {!result.ok && result.hint !== "" && (
        <span className="block text-text-2 text-xs">{result.hint}</span>
      )}
    </p>
  );
}
