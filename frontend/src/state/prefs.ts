/** What one person has chosen on this browser. Kept in storage under one name. */
import { create } from "zustand";
import { plausibleCharacters, plausibleRate } from "@/core/estimate";
import type { Preset } from "@/core/types";
import { readStored, writeStored } from "./storage";

export type Theme = "light" | "dark" | "system";
export type Language = "en" | "de";
export type SendKey = "enter" | "ctrl-enter";

/** What earlier answers of a model on a server have shown. */
export interface Learnt {
  prefill: number | null;
  decode: number | null;
  characters: number | null;
}

export interface Prefs {
  theme: Theme;
  /** Null: the browser's language, if we have it. */
  language: Language | null;
  sendKey: SendKey;
  runtimeOpen: boolean;
  sidebarOpen: boolean;
  /** The small brain beside the chat. */
  miniBrain: boolean;
  /** Empty: the server that this page comes from. */
  base: string;
  /** For another server only; our own one is logged in to. */
  key: string;
  model: string | null;
  /** The first steps have been seen. */
  welcomed: boolean;
  learnt: Record<string, Learnt>;
  /** Presets, where no server of ours keeps them. */
  presets: Preset[];
}

const NAME = "colibri.prefs";

const DEFAULTS: Prefs = {
  theme: "system",
  language: null,
  sendKey: "enter",
  runtimeOpen: true,
  sidebarOpen: true,
  miniBrain: true,
  base: "",
  key: "",
  model: null,
  welcomed: false,
  learnt: {},
  presets: [],
};

/** Takes over what has the type of the default; anything else in the storage is ignored. */
export function loadPrefs(): Prefs {
  let stored: unknown;
  try {
    stored = JSON.parse(readStored(NAME) ?? "{}");
  } catch {
    return DEFAULTS;
  }
  if (typeof stored !== "object" || stored === null) return DEFAULTS;
  const known = Object.entries(stored).filter(([name, value]) => {
    const usual = (DEFAULTS as unknown as Record<string, unknown>)[name];
    if (usual === undefined) return false;
    if (usual === null) return value === null || typeof value === "string";
    return typeof value === typeof usual && Array.isArray(value) === Array.isArray(usual);
  });
  const prefs: Prefs = { ...DEFAULTS, ...Object.fromEntries(known) };
  return { ...prefs, learnt: plausible(prefs.learnt) };
}

/** Estimates are made of these, and of what joins them later: nothing that cannot be may stay. */
function plausible(learnt: Record<string, unknown>): Record<string, Learnt> {
  return Object.fromEntries(
    Object.entries(learnt).map(([name, value]) => {
      const { prefill, decode, characters } = Object(value) as Record<keyof Learnt, unknown>;
      const kept: Learnt = {
        prefill: plausibleRate(prefill),
        decode: plausibleRate(decode),
        characters: plausibleCharacters(characters),
      };
      return [name, kept];
    }),
  );
}

export const usePrefs = create<Prefs>()(() => loadPrefs());

usePrefs.subscribe((prefs) => writeStored(NAME, JSON.stringify(prefs)));

export const setPrefs = (change: Partial<Prefs>): void => usePrefs.setState(change);
