/** What models mean for a person who chooses one, from the figures that the server measures. */

export type Verdict = "resident" | "streams" | "slow" | "no";

interface Figures {
  fits: boolean;
  resident: boolean;
  tokens_per_second: { low: number; high: number } | null;
}

// Slower than this nobody waits for an answer while looking on.
const SLOW = 1;

export function verdict(fit: Figures): Verdict {
  if (!fit.fits) return "no";
  if ((fit.tokens_per_second?.high ?? SLOW) < SLOW) return "slow";
  return fit.resident ? "resident" : "streams";
}

/** What lies in memory and what stays on disk, of a model of `size` bytes. */
export function shares(
  tiers: { vram_bytes: number; ram_bytes: number; disk_bytes: number },
  resident: boolean,
): { vram: number; ram: number; disk: number } {
  const { vram_bytes: vram, ram_bytes: ram, disk_bytes: all } = tiers;
  return { vram, ram, disk: resident ? 0 : Math.max(0, all - ram - vram) };
}

/** The loaded one first, then the smaller ones, which answer sooner; broken ones are left out. */
export function inOrder<
  Model extends { loaded: boolean; size_bytes: number; problem: string | null },
>(models: readonly Model[]): Model[] {
  return models
    .filter(({ problem }) => problem === null || problem === "")
    .sort((a, b) => Number(b.loaded) - Number(a.loaded) || a.size_bytes - b.size_bytes);
}
