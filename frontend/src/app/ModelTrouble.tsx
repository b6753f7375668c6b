/** No model answers, although one was to: why, and ways on. On every page, until there is one. */
import { TriangleAlert } from "lucide-react";
import { useTranslation } from "react-i18next";
import { useLocation, useNavigate } from "react-router";
import { inWindow, say } from "@/desktop/shell";
import { useTalkedTo } from "@/state/telemetry";
import { Button } from "@/ui/Button";

export function ModelTrouble() {
  const { t } = useTranslation();
  const navigate = useNavigate();
  const { pathname } = useLocation();
  const state = useTalkedTo(({ engine }) => engine.state);
  const reason = useTalkedTo(({ engine }) => engine.last_failure);
  // Who has unloaded the model needs no warning; the page of the models says this by itself.
  const empty = state === "unloaded" && Boolean(reason) && pathname !== "/models";
  if (!empty && state !== "failed") return null;
  return (
    <div role="status" className="flex gap-3 border-line border-b bg-warn-soft p-3 text-warn">
      <TriangleAlert size={17} aria-hidden="true" className="mt-0.5 shrink-0" />
      <div className="flex min-w-0 flex-col gap-2">
        <p className="[overflow-wrap:anywhere]">
          {t("trouble.noModel")} {reason}
        </p>
        <div className="flex flex-wrap gap-2">
          {pathname !== "/models" && (
            <Button small onClick={() => navigate("/models")}>
              {t("trouble.choose")}
            </Button>
          )}
          {inWindow() && (
            <Button small onClick={() => say("open_model")}>
              {t("trouble.folder")}
            </Button>
          )}
          {pathname !== "/server" && (
            <Button small onClick={() => navigate("/server")}>
              {t("trouble.log")}
            </Button>
          )}
        </div>
      </div>
    </div>
  );
}
