/** Where there is no atlas to show: why, and what makes one. */
import { Check, Copy, Layers, Orbit, TriangleAlert, Unplug } from "lucide-react";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { useNavigate } from "react-router";
import { HttpError } from "@/api/http";
import { Button, IconButton } from "@/ui/Button";
import { copyText } from "@/ui/files";
import { State } from "@/ui/State";

const COMMANDS = ["coli atlas run", "coli atlas analyze --web"];

interface AtlasMissingProps {
  error: Error;
  looking: boolean;
  onRetry: () => void;
}

export function AtlasMissing({ error, looking, onRetry }: AtlasMissingProps) {
  const { t } = useTranslation();
  const { code, commands, message } =
    error instanceof HttpError
      ? error.answer
      : { code: null, commands: [], message: error.message };
  const retry = (
    <Button disabled={looking} onClick={onRetry}>
      {t("atlas.lookAgain")}
    </Button>
  );
  if (code === "atlas_no_experts") {
    return <State icon={Layers} title={t("atlas.denseTitle")} text={t("atlas.denseText")} />;
  }
  if (code !== "atlas_missing") {
    return (
      <State
        icon={TriangleAlert}
        title={t(code === "atlas_damaged" ? "atlas.damagedTitle" : "atlas.failedTitle")}
        text={message}
        actions={retry}
      />
    );
  }
  return (
    <State
      icon={Orbit}
      title={t("atlas.missingTitle")}
      text={
        <>
          <p>{t("atlas.missingText")}</p>
          <ul className="mt-3 space-y-2 text-left">
            {(commands?.length ? commands : COMMANDS).map((command) => (
              <Command key={command} command={command} />
            ))}
          </ul>
        </>
      }
      actions={retry}
    />
  );
}

function Command({ command }: { command: string }) {
  const { t } = useTranslation();
  const [copied, setCopied] = useState(false);
  return (
    <li className="flex items-center gap-2 rounded-sm border border-line bg-surface-1 py-1 pr-1 pl-3">
      <code className="grow break-all font-mono text-text-1 text-xs">{command}</code>
      <IconButton
        small
        icon={copied ? Check : Copy}
        label={copied ? t("chat.copied") : t("atlas.copyCommand", { command })}
        onClick={() => void copyText(command).then(setCopied)}
      />
    </li>
  );
}

export function AtlasForeign() {
  const { t } = useTranslation();
  const go = useNavigate();
  return (
    <State
      icon={Unplug}
      title={t("atlas.foreignTitle")}
      text={t("atlas.foreignText")}
      actions={<Button onClick={() => go("/settings")}>{t("failure.connection")}</Button>}
    />
  );
}
