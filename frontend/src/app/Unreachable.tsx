/** The server that this page came from does not answer: say so, and keep asking. */
import { Unplug } from "lucide-react";
import { useEffect } from "react";
import { useTranslation } from "react-i18next";
import { checkSession } from "@/state/session";
import { Button } from "@/ui/Button";
import { State } from "@/ui/State";

const AGAIN_MS = 3000;

export function Unreachable() {
  const { t } = useTranslation();
  useEffect(() => {
    const timer = setInterval(() => void checkSession(), AGAIN_MS);
    return () => clearInterval(timer);
  }, []);
  return (
    <div className="flex h-full">
      <State
        icon={Unplug}
        title={t("unreachable.title")}
        text={t("unreachable.text", { url: location.origin })}
        actions={
          <Button tone="primary" onClick={() => void checkSession()}>
            {t("common.retry")}
          </Button>
        }
      />
    </div>
  );
}
