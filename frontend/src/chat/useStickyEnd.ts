/** Keeps a scrolled box at its end while its content grows, until the reader scrolls up. */
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";

const NEAR_PX = 60;

export function useStickyEnd(about: string) {
  const scroller = useRef<HTMLElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const stuck = useRef(true);
  const [atEnd, setAtEnd] = useState(true);

  const toEnd = useCallback(() => {
    stuck.current = true;
    setAtEnd(true);
    const box = scroller.current;
    if (box) box.scrollTop = box.scrollHeight;
  }, []);

  // biome-ignore lint/correctness/useExhaustiveDependencies: another chat begins at its end
  useLayoutEffect(toEnd, [about, toEnd]);

  useEffect(() => {
    const box = scroller.current;
    const inside = content.current;
    if (!box || !inside) return;
    let last = box.scrollTop;
    const onScroll = () => {
      const near = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_PX;
      // Only a move upwards is the reader's: growth moves the end away without one.
      if (near) stuck.current = true;
      else if (box.scrollTop < last - 2) stuck.current = false;
      last = box.scrollTop;
      setAtEnd(stuck.current);
    };
    const watcher = new ResizeObserver(() => {
      if (stuck.current) box.scrollTop = box.scrollHeight;
      last = box.scrollTop;
    });
    box.addEventListener("scroll", onScroll, { passive: true });
    watcher.observe(inside);
    watcher.observe(box);
    return () => {
      box.removeEventListener("scroll", onScroll);
      watcher.disconnect();
    };
  }, []);

  return { scroller, content, atEnd, toEnd };
}
