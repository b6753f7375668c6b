/** Lines of the log: which are shown, and how they are written. */

export const LEVELS = ["debug", "info", "warning", "error"] as const;
export type Level = (typeof LEVELS)[number];

interface Line {
  at_ms: number;
  level: Level;
  logger: string;
  message: string;
  request_id: string;
}

/** Those of at least a level that hold every one of the words, whatever their case. */
export function matching<T extends Line>(lines: readonly T[], least: Level, words: string): T[] {
  const from = LEVELS.indexOf(least);
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return lines.filter((line) => {
    if (LEVELS.indexOf(line.level) < from) return false;
    const text = `${line.logger} ${line.message} ${line.request_id}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/** As text, to be pasted into a report. */
export function asText(lines: readonly Line[]): string {
  return lines
    .map(({ at_ms, level, logger, message, request_id }) =>
      [new Date(at_ms).toISOString(), level.toUpperCase(), logger, request_id, message]
        .filter(Boolean)
        .join(" "),
    )
    .join("\n");
}
