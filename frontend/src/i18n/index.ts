/**
 * The page's words. English is part of the page, other languages come when they are chosen.
 *
 * A new language is one more file of the same keys (a test compares them) and one more line here.
 */
import i18next from "i18next";
import { initReactI18next } from "react-i18next";
import { type Language, usePrefs } from "@/state/prefs";
import en from "./en.json";

export const LANGUAGES: Record<Language, string> = { en: "English", de: "Deutsch" };

const FILES: Record<Exclude<Language, "en">, () => Promise<{ default: object }>> = {
  de: () => import("./de.json"),
};

/** The chosen language, or the browser's if we have it. */
export function languageOf(chosen: Language | null, offered: readonly string[]): Language {
  if (chosen) return chosen;
  const known = offered.map((tag) => tag.slice(0, 2).toLowerCase());
  return (known.find((tag) => tag in LANGUAGES) as Language | undefined) ?? "en";
}

export async function startI18n(): Promise<void> {
  await i18next.use(initReactI18next).init({
    resources: { en: { translation: en } },
    lng: "en",
    fallbackLng: "en",
    showSupportNotice: false,
    // React escapes.
    interpolation: { escapeValue: false },
  });
  await show(usePrefs.getState().language);
  usePrefs.subscribe(({ language }, old) => {
    if (language !== old.language) void show(language);
  });
}

async function show(chosen: Language | null): Promise<void> {
  const language = languageOf(chosen, navigator.languages ?? []);
  if (language !== "en" && !i18next.hasResourceBundle(language, "translation")) {
    const file = await FILES[language]().catch(() => null);
    if (!file) return;
    i18next.addResourceBundle(language, "translation", file.default);
  }
  await i18next.changeLanguage(language);
  document.documentElement.lang = language;
}
