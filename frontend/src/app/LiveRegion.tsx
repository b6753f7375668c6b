/** Tells screen readers when an answer begins and when it is complete; never each word of it. */
import { useEffect } from "react";
import { useTranslation } from "react-i18next";
import { textOf } from "@/core/parts";
import { findChat } from "@/state/chats";
import { useTurns } from "@/state/turns";
import { announce, useUi } from "@/state/ui";

/** Longer answers are read by whoever wants to. */
const MOST_CHARACTERS = 400;

export function LiveRegion() {
  const { t } = useTranslation();
  const announcement = useUi((state) => state.announcement);
  useEffect(
    () =>
      useTurns.subscribe(({ turns }, { turns: before }) => {
        for (const id of Object.keys(turns)) if (!(id in before)) announce(t("live.begun"));
        for (const [id, { chatId }] of Object.entries(before)) {
          if (id in turns) continue;
          const message = findChat(chatId)?.tree.messages[id];
          const text = message ? textOf(message.parts) : "";
          const failed = message?.meta.failure !== undefined;
          announce(
            failed
              ? t("live.failed")
              : t("live.done", { text: text.length > MOST_CHARACTERS ? "" : text }),
          );
        }
      }),
    [t],
  );
  return (
    <div aria-live="polite" className="sr-only">
      {announcement}
    </div>
  );
}
