/** What pictures depend on beside what they show: theme, wishes of the person, sizes, the screen. */
import { useEffect, useState, useSyncExternalStore } from "react";

/** Calls `changed` when the page has become light or dark; returns what ends that. */
export function watchTheme(changed: () => void): () => void {
  const observer = new MutationObserver(changed);
  observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  return () => observer.disconnect();
}

const isDark = (): boolean => document.documentElement.dataset["theme"] === "dark";

/** Whether the page is dark, as shown: the choice "as the system" is resolved. */
export function useDark(): boolean {
  return useSyncExternalStore(watchTheme, isDark);
}

/** Whether the person wants nothing to move. */
export function useStill(): boolean {
  const [still, setStill] = useState(() => wish().matches);
  useEffect(() => {
    const media = wish();
    const update = () => setStill(media.matches);
    update();
    media.addEventListener("change", update);
    return () => media.removeEventListener("change", update);
  }, []);
  return still;
}

const wish = (): MediaQueryList => matchMedia("(prefers-reduced-motion: reduce)");

/** Pixels of the device for one of the page; changes with zoom and with the screen. */
export function useRatio(): number {
  const [ratio, setRatio] = useState(devicePixelRatio || 1);
  useEffect(() => {
    // No event tells of a new ratio but the end of the old one.
    const media = matchMedia(`(resolution: ${ratio}dppx)`);
    const update = () => setRatio(devicePixelRatio || 1);
    media.addEventListener("change", update);
    return () => media.removeEventListener("change", update);
  }, [ratio]);
  return ratio;
}

/** Size of an element in the page's pixels; null until it is measured. */
export function useSize(element: HTMLElement | null): { width: number; height: number } | null {
  const [size, setSize] = useState<{ width: number; height: number } | null>(null);
  useEffect(() => {
    if (!element) return;
    const measure = () =>
      setSize((old) => {
        const { clientWidth: width, clientHeight: height } = element;
        return old?.width === width && old.height === height ? old : { width, height };
      });
    measure();
    const watcher = new ResizeObserver(measure);
    watcher.observe(element);
    return () => watcher.disconnect();
  }, [element]);
  return size;
}
