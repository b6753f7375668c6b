/** Navigation at the left, the page in the middle, what the machine does at the right. */
import { lazy, Suspense } from "react";
import { useTranslation } from "react-i18next";
import { Navigate, Route, Routes } from "react-router";
import { useShell } from "@/desktop/useShell";
import { RuntimePanel } from "@/runtime/RuntimePanel";
import { usePrefs } from "@/state/prefs";
import { openSheet, useUi } from "@/state/ui";
import { Sheet } from "@/ui/Sheet";
import { Crash } from "./Crash";
import { ModelTrouble } from "./ModelTrouble";
import { Palette } from "./Palette";
import { PAGES } from "./pages";
import { ShortcutSheet } from "./ShortcutSheet";
import { Sidebar } from "./Sidebar";
import { useShortcuts } from "./useShortcuts";

const WelcomePage = lazy(() => import("@/welcome/WelcomePage"));

export function Shell() {
  const { t } = useTranslation();
  const sheet = useUi((state) => state.sheet);
  const runtimeOpen = usePrefs((prefs) => prefs.runtimeOpen);
  useShortcuts();
  useShell();
  return (
    <div className="flex h-full">
      <a
        href="#main"
        className="sr-only focus:not-sr-only focus:absolute focus:z-50 focus:m-2 focus:rounded-sm focus:bg-surface-1 focus:p-2"
      >
        {t("nav.skip")}
      </a>
      <div className="hidden w-64 shrink-0 border-line border-r bg-surface-1 lg:block">
        <Sidebar />
      </div>
      <main id="main" tabIndex={-1} className="flex min-w-0 grow flex-col outline-none">
        <ModelTrouble />
        <Crash>
          <Suspense fallback={<div aria-busy="true" className="grow" />}>
            <Routes>
              {PAGES.flatMap(({ routes, component: Component }) =>
                routes.map((path) => <Route key={path} path={path} element={<Component />} />),
              )}
              <Route path="/welcome" element={<WelcomePage />} />
              <Route path="*" element={<Navigate to="/chat" replace />} />
            </Routes>
          </Suspense>
        </Crash>
      </main>
      {runtimeOpen && (
        <div className="hidden w-72 shrink-0 overflow-y-auto border-line border-l bg-surface-1 xl:block">
          <RuntimePanel />
        </div>
      )}
      <Sheet
        open={sheet === "sidebar"}
        onClose={() => openSheet(null)}
        side="left"
        title={t("nav.menu")}
      >
        <div className="-m-4 flex h-[calc(100%+2rem)] flex-col">
          <Sidebar />
        </div>
      </Sheet>
      <Sheet
        open={sheet === "runtime"}
        onClose={() => openSheet(null)}
        side="right"
        title={t("runtime.title")}
      >
        <div className="-m-4">
          <RuntimePanel />
        </div>
      </Sheet>
      <ShortcutSheet />
      <Palette />
    </div>
  );
}
