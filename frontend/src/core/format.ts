/** Numbers for people: short, with units, in the language of the page. */

/** Bytes with decimal units, as drives and memory are sold: 4.2 GB. */
export function bytes(value: number, language: string): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = Math.max(0, value);
  let unit = 0;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit++;
  }
  const digits = size < 10 && unit > 0 ? 1 : 0;
  return `${size.toLocaleString(language, { maximumFractionDigits: digits })} ${units[unit]}`;
}

export function count(value: number, language: string): string {
  return Math.round(value).toLocaleString(language);
}

/** A rate: three digits are more than anyone reads. */
export function rate(value: number, language: string): string {
  const digits = value < 10 ? 2 : value < 100 ? 1 : 0;
  return value.toLocaleString(language, {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}

/** A span of time: 840 ms, 3.2 s, 4 min 05 s, 2 h 10 min. */
export function duration(ms: number, language: string): string {
  if (ms < 999.5) return `${Math.round(Math.max(0, ms))} ms`;
  const seconds = ms / 1000;
  if (seconds < 59.95) {
    const digits = seconds < 10 ? 1 : 0;
    return `${seconds.toLocaleString(language, { maximumFractionDigits: digits })} s`;
  }
  const minutes = Math.floor(Math.round(seconds) / 60);
  const rest = Math.round(seconds) % 60;
  if (minutes < 60) return `${minutes} min ${String(rest).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

/** A share as a whole percentage; what is more than nothing is never 0 %. */
export function percent(share: number): string {
  const value = Math.round(Math.min(1, Math.max(0, share)) * 100);
  return `${share > 0 && value === 0 ? 1 : value} %`;
}

/** When something happened, as short as the distance allows. */
export function when(at: number, now: number, language: string): string {
  const date = new Date(at);
  const today = new Date(now);
  if (date.toDateString() === today.toDateString()) {
    return date.toLocaleTimeString(language, { hour: "2-digit", minute: "2-digit" });
  }
  const sameYear = date.getFullYear() === today.getFullYear();
  return date.toLocaleDateString(language, {
    day: "numeric",
    month: "short",
    ...(!sameYear && { year: "numeric" }),
  });
}
