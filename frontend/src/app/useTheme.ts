/** Puts the chosen theme on the page, and follows the system where that is the choice. */
import { useEffect } from "react";
import { usePrefs } from "@/state/prefs";

export function useTheme(): void {
  const theme = usePrefs((prefs) => prefs.theme);
  useEffect(() => {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const apply = () => {
      const dark = theme === "dark" || (theme === "system" && system.matches);
      document.documentElement.dataset["theme"] = dark ? "dark" : "light";
    };
    apply();
    system.addEventListener("change", apply);
    return () => system.removeEventListener("change", apply);
  }, [theme]);
}
