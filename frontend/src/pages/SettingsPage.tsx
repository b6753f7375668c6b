/** What a person sets for this browser: looks, language, keys, and the server that is talked to. */
import { LogOut } from "lucide-react";
import { type ReactNode, useEffect } from "react";
import { useTranslation } from "react-i18next";
import { LANGUAGES } from "@/i18n";
import { type Language, type SendKey, setPrefs, type Theme, usePrefs } from "@/state/prefs";
import { logOut, useSession } from "@/state/session";
import { storageWorks } from "@/state/storage";
import { Button } from "@/ui/Button";
import { PageHeader } from "@/ui/PageHeader";
import { Segments } from "@/ui/Segments";
import { ConnectionForm } from "./ConnectionForm";
import { Licences } from "./Licences";

export default function SettingsPage() {
  const { t } = useTranslation();
  useEffect(() => {
    document.title = `${t("nav.settings")} · Colibri`;
  }, [t]);
  return (
    <>
      <PageHeader title={t("nav.settings")} />
      <div className="min-h-0 grow overflow-y-auto">
        <div className="mx-auto flex max-w-2xl flex-col gap-8 px-4 py-6">
          <Looks />
          <Group title={t("prefs.connection")} text={t("prefs.connectionText")}>
            <ConnectionForm />
          </Group>
          <Access />
          {!storageWorks() && (
            <p className="rounded-md bg-warn-soft p-3 text-warn">{t("prefs.noStorage")}</p>
          )}
        </div>
      </div>
    </>
  );
}

function Group({ title, text, children }: { title: string; text?: string; children: ReactNode }) {
  return (
    <section className="flex flex-col gap-4">
      <div>
        <h2 className="font-semibold text-base">{title}</h2>
        {text && <p className="mt-1 text-text-2">{text}</p>}
      </div>
      {children}
    </section>
  );
}

function Line({ label, children }: { label: string; children: ReactNode }) {
  return (
    <div className="flex flex-wrap items-center justify-between gap-2 border-line border-b pb-3">
      <span>{label}</span>
      {children}
    </div>
  );
}

function Looks() {
  const { t } = useTranslation();
  const { theme, language, sendKey, miniBrain } = usePrefs();
  const languages = Object.entries(LANGUAGES).map(([value, label]) => ({ value, label }));
  return (
    <Group title={t("prefs.looks")}>
      <Line label={t("prefs.theme")}>
        <Segments<Theme>
          label={t("prefs.theme")}
          value={theme}
          options={[
            { value: "light", label: t("prefs.light") },
            { value: "dark", label: t("prefs.dark") },
            { value: "system", label: t("prefs.system") },
          ]}
          onChange={(next) => setPrefs({ theme: next })}
        />
      </Line>
      <Line label={t("prefs.language")}>
        <Segments<string>
          label={t("prefs.language")}
          value={language ?? "auto"}
          options={[{ value: "auto", label: t("prefs.auto") }, ...languages]}
          onChange={(next) => setPrefs({ language: next === "auto" ? null : (next as Language) })}
        />
      </Line>
      <Line label={t("prefs.sendKey")}>
        <Segments<SendKey>
          label={t("prefs.sendKey")}
          value={sendKey}
          options={[
            { value: "enter", label: "Enter" },
            { value: "ctrl-enter", label: "Ctrl+Enter" },
          ]}
          onChange={(next) => setPrefs({ sendKey: next })}
        />
      </Line>
      <Line label={t("prefs.miniBrain")}>
        <Segments<"shown" | "hidden">
          label={t("prefs.miniBrain")}
          value={miniBrain ? "shown" : "hidden"}
          options={[
            { value: "shown", label: t("prefs.shown") },
            { value: "hidden", label: t("prefs.hidden") },
          ]}
          onChange={(next) => setPrefs({ miniBrain: next === "shown" })}
        />
      </Line>
    </Group>
  );
}

function Access() {
  const { t } = useTranslation();
  const session = useSession((state) => state.session);
  if (session === "unknown" || session === null) return null;
  return (
    <Group title={t("prefs.about")}>
      <Line label={t("prefs.version")}>
        <span className="figures text-text-2">{session.version}</span>
      </Line>
      <Licences />
      {session.login_required && (
        <div>
          <Button icon={LogOut} onClick={() => void logOut()}>
            {t("login.out")}
          </Button>
        </div>
      )}
    </Group>
  );
}
