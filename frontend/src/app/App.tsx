/** The whole page: what every part of it needs, and which part is shown. */
import { QueryClientProvider } from "@tanstack/react-query";
import { Tooltip } from "radix-ui";
import { useEffect } from "react";
import { BrowserRouter } from "react-router";
import { sayReady } from "@/desktop/shell";
import { usePrefs } from "@/state/prefs";
import { queryClient } from "@/state/queries";
import { checkSession, isHome, needsLogin, useSession } from "@/state/session";
import { startTelemetry, stopTelemetry } from "@/state/telemetry";
import { Crash } from "./Crash";
import { LiveRegion } from "./LiveRegion";
import { LoginPage } from "./LoginPage";
import { Notices } from "./Notices";
import { Shell } from "./Shell";
import { Unreachable } from "./Unreachable";
import { useTheme } from "./useTheme";

export function App() {
  useTheme();
  return (
    <QueryClientProvider client={queryClient}>
      <Tooltip.Provider>
        {/* Not as a transition: those wait while a stream updates the page with every frame. */}
        <BrowserRouter basename="/app" useTransitions={false}>
          <Crash>
            <Gate />
          </Crash>
        </BrowserRouter>
        <Notices />
        <LiveRegion />
      </Tooltip.Provider>
    </QueryClientProvider>
  );
}

/** Nothing is shown before it is known who keeps the chats and whether we are let in. */
function Gate() {
  const session = useSession((state) => state.session);
  const unreachable = useSession((state) => state.unreachable);
  const locked = useSession(needsLogin);
  const home = useSession(isHome);
  const foreign = usePrefs((prefs) => prefs.base !== "");

  useEffect(() => {
    void checkSession();
  }, []);

  useEffect(() => {
    if (!home) return;
    startTelemetry();
    return stopTelemetry;
  }, [home]);

  // What stands there now is a page, whatever it says.
  const shown = session !== "unknown" || unreachable;
  useEffect(() => {
    if (shown) sayReady();
  }, [shown]);

  if (session === "unknown") return unreachable && !foreign ? <Unreachable /> : null;
  if (locked && !foreign) return <LoginPage />;
  return <Shell />;
}
