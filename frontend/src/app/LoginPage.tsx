/** A server with a key asks for it once; a cookie that scripts cannot read remembers it. */
import { type FormEvent, useState } from "react";
import { useTranslation } from "react-i18next";
import { HttpError } from "@/api/http";
import { logIn } from "@/state/session";
import { Button } from "@/ui/Button";
import { Field } from "@/ui/Field";
import { Logo } from "@/ui/Logo";

export function LoginPage() {
  const { t } = useTranslation();
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);

  async function submit(event: FormEvent): Promise<void> {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await logIn(key);
    } catch (error) {
      const status = error instanceof HttpError ? error.status : 0;
      setProblem(
        status === 401
          ? t("login.wrong")
          : status === 429
            ? t("login.tooMany")
            : error instanceof HttpError
              ? error.message
              : t("unreachable.title"),
      );
    } finally {
      setBusy(false);
    }
  }

  return (
    <main className="flex h-full items-center justify-center p-4">
      <form
        onSubmit={(event) => void submit(event)}
        className="flex w-full max-w-sm flex-col gap-4 rounded-lg border border-line bg-surface-1 p-6 shadow-float"
      >
        <div className="flex items-center gap-3">
          <Logo size={36} />
          <h1 className="font-semibold text-lg">{t("login.title")}</h1>
        </div>
        <Field label={t("login.key")} hint={t("login.hint")}>
          {(id, hint) => (
            <input
              id={id}
              aria-describedby={hint}
              type="password"
              autoComplete="current-password"
              value={key}
              onChange={(event) => setKey(event.target.value)}
              className="field h-10"
            />
          )}
        </Field>
        {problem && (
          <p role="alert" className="text-danger">
            {problem}
          </p>
        )}
        <Button tone="primary" type="submit" disabled={busy || key === ""}>
          {t("login.action")}
        </Button>
      </form>
    </main>
  );
}
