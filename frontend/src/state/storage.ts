/**
 * Small values that outlive the page. Where the browser refuses localStorage (private windows, an
 * embedded browser that has lost it), they live as long as the page and nothing else changes.
 */

const memory = new Map<string, string>();

export function readStored(name: string): string | null {
  try {
    return globalThis.localStorage.getItem(name) ?? memory.get(name) ?? null;
  } catch {
    return memory.get(name) ?? null;
  }
}

export function writeStored(name: string, value: string | null): void {
  if (value === null) memory.delete(name);
  else memory.set(name, value);
  try {
    if (value === null) globalThis.localStorage.removeItem(name);
    else globalThis.localStorage.setItem(name, value);
  } catch {
    // Kept in memory.
  }
}

/** Whether values outlive the page here. */
export function storageWorks(): boolean {
  const probe = "colibri.probe";
  try {
    globalThis.localStorage.setItem(probe, "1");
    globalThis.localStorage.removeItem(probe);
    return true;
  } catch {
    return false;
  }
}
