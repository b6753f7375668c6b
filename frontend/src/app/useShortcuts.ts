/** Listens for the keys of the page. */
import { useEffect } from "react";
import { useLocation, useNavigate } from "react-router";
import { useUi } from "@/state/ui";
import { pressed, SHORTCUTS } from "./shortcuts";

export function useShortcuts(): void {
  const navigate = useNavigate();
  const { pathname } = useLocation();
  useEffect(() => {
    const chatId = /^\/chat\/([^/]+)/.exec(pathname)?.[1] ?? null;
    const go = (path: string) => void navigate(path);
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.isComposing || event.defaultPrevented) return;
      const typing = isField(event.target);
      for (const { keys, typing: always, run } of SHORTCUTS) {
        if ((typing && !always) || !pressed(keys, event)) continue;
        // Keys without Ctrl belong to what is open over the page.
        if (!keys.includes("Mod") && useUi.getState().sheet !== null) continue;
        if (run({ chatId, go })) event.preventDefault();
        return;
      }
    };
    window.addEventListener("keydown", onKeyDown);
    return () => window.removeEventListener("keydown", onKeyDown);
  }, [navigate, pathname]);
}

function isField(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName))
  );
}
