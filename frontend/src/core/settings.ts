/** Questions about a chat's settings. */
import { type ChatSettings, DEFAULT_SETTINGS } from "./types";

/** Settings that the user has changed; which messages are sent is no setting of theirs. */
export function changedSettings(settings: ChatSettings): (keyof ChatSettings)[] {
  const names = Object.keys(DEFAULT_SETTINGS) as (keyof ChatSettings)[];
  return names.filter((name) => name !== "first" && settings[name] !== DEFAULT_SETTINGS[name]);
}

/** A number typed into a field: null if it is empty, clamped to what is allowed. */
export function typedNumber(
  text: string,
  limits: { min: number; max: number; whole?: boolean },
): number | null {
  const value = Number(text.trim().replace(",", "."));
  if (text.trim() === "" || !Number.isFinite(value)) return null;
  const inside = Math.min(limits.max, Math.max(limits.min, value));
  return limits.whole ? Math.round(inside) : inside;
}
