/**
 * The branch that is shown. Of a long one only the end is rendered at first; what is above follows
 * when somebody scrolls there. The view stays at the end while an answer grows, unless the reader
 * has scrolled away.
 */
import { ArrowDown, Scissors } from "lucide-react";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { useTranslation } from "react-i18next";
import { pathTo, siblingsOf, type Tree } from "@/core/tree";
import { sendFrom } from "@/state/talk";
import { useTurns } from "@/state/turns";
import { Button } from "@/ui/Button";
import { MessageView } from "./MessageView";
import { useStickyEnd } from "./useStickyEnd";

const STEP = 30;

interface MessageListProps {
  chatId: string;
  tree: Tree;
  /** The first message that is sent; null: all. */
  first: string | null;
}

export function MessageList({ chatId, tree, first }: MessageListProps) {
  const { t } = useTranslation();
  const path = useMemo(() => pathTo(tree, tree.active), [tree]);
  const running = useTurns(
    ({ turns }) => Object.values(turns).find((turn) => turn.chatId === chatId)?.messageId,
  );
  const [shown, setShown] = useState(STEP);
  const { scroller, content, atEnd, toEnd } = useStickyEnd(chatId);
  const top = useRef<HTMLDivElement>(null);
  const height = useRef(0);
  const start = Math.max(0, path.length - shown);

  useEffect(() => {
    if (running !== undefined) toEnd();
  }, [running, toEnd]);

  // What appears above must not move what is being read.
  useLayoutEffect(() => {
    const box = scroller.current;
    if (box && height.current > 0 && shown > STEP) {
      box.scrollTop += box.scrollHeight - height.current;
    }
    height.current = 0;
  }, [shown, scroller]);

  useEffect(() => {
    const mark = top.current;
    if (!mark || start === 0) return;
    const watcher = new IntersectionObserver(
      ([entry]) => {
        if (!entry?.isIntersecting) return;
        height.current = scroller.current?.scrollHeight ?? 0;
        setShown((count) => count + STEP);
      },
      { root: scroller.current, rootMargin: "400px 0px 0px" },
    );
    watcher.observe(mark);
    return () => watcher.disconnect();
  }, [start, scroller]);

  return (
    <div className="relative min-h-0 grow">
      <section
        ref={scroller}
        aria-label={t("chat.messages")}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: so that the keyboard can scroll
        tabIndex={0}
        className="h-full overflow-y-auto overflow-x-hidden px-4 outline-none [overflow-anchor:none] sm:px-6"
      >
        <div ref={content} className="mx-auto flex max-w-[var(--measure)] flex-col gap-4 pt-6 pb-8">
          {start > 0 && <div ref={top} className="h-px" />}
          {path.slice(start).map((message, at) => (
            <div key={message.id} className="contents">
              {message.id === first && start + at > 0 && (
                <p className="flex flex-wrap items-center justify-center gap-2 text-text-3 text-xs">
                  <Scissors size={14} aria-hidden="true" />
                  {t("chat.notSent", { count: start + at })}
                  <Button small tone="quiet" onClick={() => sendFrom(chatId, null)}>
                    {t("chat.sendAll")}
                  </Button>
                </p>
              )}
              <MessageView
                chatId={chatId}
                message={message}
                siblings={siblingsOf(tree, message.id)}
                last={start + at === path.length - 1}
                busy={running !== undefined}
              />
            </div>
          ))}
        </div>
      </section>
      {!atEnd && (
        <Button
          small
          icon={ArrowDown}
          onClick={toEnd}
          className="rise absolute bottom-3 left-1/2 -translate-x-1/2 rounded-full shadow-float"
        >
          {t("chat.toEnd")}
        </Button>
      )}
    </div>
  );
}
