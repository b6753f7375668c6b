/** Before the first message: who answers, where, and some ways to begin. */
import { BookOpen, Code, Feather, Languages, Lightbulb } from "lucide-react";
import { Trans, useTranslation } from "react-i18next";
import { Link } from "react-router";
import type { ModelAbout } from "@/api/openai";
import { count } from "@/core/format";
import { inWindow } from "@/desktop/shell";
import { useModels } from "@/state/models";
import { usePrefs } from "@/state/prefs";
import { Logo } from "@/ui/Logo";

const IDEAS = [
  { icon: Lightbulb, name: "explain" },
  { icon: Code, name: "code" },
  { icon: Feather, name: "write" },
  { icon: Languages, name: "translate" },
] as const;

export function Welcome() {
  const { t, i18n } = useTranslation();
  const { model, error } = useModels();
  const base = usePrefs((prefs) => prefs.base);
  const context = model?.context_length;
  const about = model?.about;
  const examples = about?.examples ?? [];
  const place = base === "" ? t("welcome.here") : t("welcome.there", { host: hostOf(base) });
  return (
    <div className="flex min-h-0 grow flex-col overflow-y-auto px-4">
      <div className="m-auto flex w-full max-w-[var(--measure)] flex-col items-center gap-6 py-8">
        <Logo size={64} />
        <div className="text-center">
          <h1 className="font-semibold text-2xl tracking-tight">{t("welcome.title")}</h1>
          <p className="mt-1.5 text-text-2">
            {error
              ? t("welcome.unreachable")
              : [
                  model?.id,
                  place,
                  context && t("model.context", { number: count(context, i18n.language) }),
                ]
                  .filter(Boolean)
                  .join(" · ")}
          </p>
          {about && (
            <p className="mx-auto mt-3 max-w-[34rem] text-balance text-sm">
              {about.starter ? t("welcome.starter") : about.note}
            </p>
          )}
        </div>
        <div className="grid w-full grid-cols-1 gap-2 sm:grid-cols-2">
          {examples.map((example) => (
            <button
              key={example}
              type="button"
              onClick={() => begin(example)}
              className="flex items-center gap-3 rounded-md border border-line bg-surface-1 p-3 text-left transition-colors hover:border-accent"
            >
              <BookOpen size={17} aria-hidden="true" className="shrink-0 text-accent" />
              <span lang="en" className="min-w-0">
                {example}
              </span>
            </button>
          ))}
          {(examples.length > 0 ? [] : IDEAS).map(({ icon: Icon, name }) => (
            <button
              key={name}
              type="button"
              onClick={() => begin(t(`welcome.${name}.text`))}
              className="flex items-start gap-3 rounded-md border border-line bg-surface-1 p-3 text-left transition-colors hover:border-accent"
            >
              <Icon size={17} aria-hidden="true" className="mt-0.5 shrink-0 text-accent" />
              <span className="min-w-0">
                <span className="block font-medium">{t(`welcome.${name}.title`)}</span>
                <span className="block truncate text-text-2 text-xs">
                  {t(`welcome.${name}.text`)}
                </span>
              </span>
            </button>
          ))}
        </div>
        {about?.starter && (
          <p className="max-w-[34rem] text-balance text-center text-text-2 text-xs">
            <Trans
              i18nKey={`welcome.more.${started(about)}`}
              components={{
                code: <code className="text-text-1 [overflow-wrap:anywhere]" />,
                models: <Link to="/models" className="text-accent underline underline-offset-2" />,
              }}
            />
          </p>
        )}
      </div>
    </div>
  );
}

/** How the program was started, which decides what gets another model. */
function started(about: ModelAbout): "window" | "source" | "installed" {
  if (inWindow()) return "window";
  return about.fromSource ? "source" : "installed";
}

/** Puts words into the field below; the user completes and sends them. */
function begin(text: string): void {
  const area = document.getElementById("composer");
  if (!(area instanceof HTMLTextAreaElement)) return;
  area.focus();
  area.select();
  document.execCommand("insertText", false, text);
}

function hostOf(base: string): string {
  try {
    return new URL(base).host;
  } catch {
    return base;
  }
}
