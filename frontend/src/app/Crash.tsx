/** The last resort: a part of the page that broke says so, and can be tried again. */
import { Bug } from "lucide-react";
import type { ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { useLocation } from "react-router";
import { Boundary } from "@/ui/Boundary";
import { Button } from "@/ui/Button";
import { State } from "@/ui/State";

export function Crash({ children }: { children: ReactNode }) {
  const { t } = useTranslation();
  const { pathname } = useLocation();
  return (
    <Boundary
      about={pathname}
      fallback={(error, retry) => (
        <State
          icon={Bug}
          title={t("crash.title")}
          text={
            <>
              <p>{t("crash.text")}</p>
              <p className="code mt-2 whitespace-pre-wrap">{error.message}</p>
            </>
          }
          actions={
            <>
              <Button tone="primary" onClick={retry}>
                {t("common.retry")}
              </Button>
              <Button onClick={() => location.reload()}>{t("crash.reload")}</Button>
            </>
          }
        />
      )}
    >
      {children}
    </Boundary>
  );
}
