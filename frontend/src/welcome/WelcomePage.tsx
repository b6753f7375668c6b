/**
 * The first steps: what the computer has, which model fits it, the first words of it. The app's window
 * shows it once by itself; later it is at /welcome.
 */
import { type ReactNode, useEffect } from "react";
import { useTranslation } from "react-i18next";
import { useNavigate } from "react-router";
import { setPrefs } from "@/state/prefs";
import { send } from "@/state/talk";
import { useTelemetry } from "@/state/telemetry";
import { Button } from "@/ui/Button";
import { Logo } from "@/ui/Logo";
import { Choice } from "./Choice";
import { Machine } from "./Machine";

export default function WelcomePage() {
  const { t } = useTranslation();
  const navigate = useNavigate();
  const hardware = useTelemetry(({ state }) => state?.hardware);
  const engine = useTelemetry(({ state }) => state?.engine.state);
  const ready = engine === "ready";
  useEffect(() => {
    document.title = `${t("first.title")} · Colibri`;
    // Seen is seen, also by whoever goes on without a word.
    setPrefs({ welcomed: true });
  }, [t]);

  function sayHello(): void {
    void navigate(`/chat/${send(null, [{ type: "text", text: t("first.helloText") }])}`);
  }

  return (
    <div className="min-h-0 grow overflow-y-auto">
      <div className="mx-auto flex max-w-3xl flex-col gap-8 px-4 py-8">
        <header className="flex items-center gap-4">
          <Logo size={56} />
          <div>
            <h1 className="font-semibold text-2xl tracking-tight">{t("first.title")}</h1>
            <p className="mt-1 text-text-2">{t("first.text")}</p>
          </div>
        </header>
        <Step number={1} title={t("first.machine")}>
          <Machine hardware={hardware} />
        </Step>
        <Step number={2} title={t("first.model")}>
          <Choice />
        </Step>
        <Step number={3} title={t("first.words")}>
          <div className="flex flex-wrap items-center gap-2">
            <Button tone="primary" disabled={!ready} onClick={sayHello}>
              {t("first.hello")}
            </Button>
            <Button tone="quiet" onClick={() => void navigate("/chat")}>
              {t("first.skip")}
            </Button>
            {!ready && (
              <span role="status" className="text-text-2">
                {t(engine === "loading" ? "first.wait" : "first.needsModel")}
              </span>
            )}
          </div>
        </Step>
      </div>
    </div>
  );
}

function Step({ number, title, children }: { number: number; title: string; children: ReactNode }) {
  return (
    <section aria-label={title}>
      <h2 className="mb-3 flex items-center gap-2.5 font-semibold text-base">
        <span
          aria-hidden="true"
          className="inline-flex size-6 items-center justify-center rounded-full bg-accent text-on-accent text-xs"
        >
          {number}
        </span>
        {title}
      </h2>
      {children}
    </section>
  );
}
