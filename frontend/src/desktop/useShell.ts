/** Does what the app's window asks for: commands of its menu, notices, the page's theme. */
import { useEffect } from "react";
import { useTranslation } from "react-i18next";
import { useNavigate } from "react-router";
import { usePrefs } from "@/state/prefs";
import { notify } from "@/state/ui";
import { type Command, inWindow, listen, say } from "./shell";

const NOTICES = ["port_taken", "server_reused"] as const;

export function useShell(): void {
  const { t } = useTranslation();
  const navigate = useNavigate();
  useEffect(() => {
    if (!inWindow()) return;
    const commands: Record<Command, () => void> = {
      new_chat: () => void navigate("/chat"),
      attach: () => {
        if (!document.getElementById("composer-attach")) void navigate("/chat");
        clickOnceThere("composer-attach");
      },
      welcome: () => void navigate("/welcome"),
    };
    return listen({
      command: (name) => commands[name]?.(),
      notice: ({ code, values }) => {
        const known = NOTICES.find((name) => name === code);
        if (known) notify("info", t(`desktop.${known}`, values));
      },
    });
  }, [navigate, t]);

  useEffect(() => {
    if (inWindow() && !usePrefs.getState().welcomed) void navigate("/welcome", { replace: true });
  }, [navigate]);

  useEffect(() => {
    if (!inWindow()) return;
    const root = document.documentElement;
    const tell = () => say("theme", { dark: root.dataset["theme"] === "dark" });
    const observer = new MutationObserver(tell);
    observer.observe(root, { attributeFilter: ["data-theme"] });
    tell();
    return () => observer.disconnect();
  }, []);
}

/** Clicks on what comes with a page that is being opened; gives up after five seconds. */
function clickOnceThere(id: string, tries = 100): void {
  const element = document.getElementById(id);
  if (element) element.click();
  else if (tries > 0) setTimeout(() => clickOnceThere(id, tries - 1), 50);
}
