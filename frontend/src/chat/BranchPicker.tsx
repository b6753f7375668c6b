/** Which of the alternatives of a message is shown, and the way to the others. */
import { ChevronLeft, ChevronRight } from "lucide-react";
import { useTranslation } from "react-i18next";
import { showBranch } from "@/state/chats";
import { IconButton } from "@/ui/Button";

interface BranchPickerProps {
  chatId: string;
  siblings: readonly string[];
  id: string;
}

export function BranchPicker({ chatId, siblings, id }: BranchPickerProps) {
  const { t } = useTranslation();
  const at = siblings.indexOf(id);
  if (siblings.length < 2) return null;
  const step = (by: number) => () => {
    const next = siblings[at + by];
    if (next !== undefined) showBranch(chatId, next);
  };
  return (
    <span className="flex items-center">
      <IconButton
        icon={ChevronLeft}
        label={t("chat.earlierVersion")}
        small
        disabled={at === 0}
        onClick={step(-1)}
      />
      <span className="figures text-text-2 text-xs">
        <span className="sr-only">{t("chat.version", { at: at + 1, count: siblings.length })}</span>
        <span aria-hidden="true">
          {at + 1}/{siblings.length}
        </span>
      </span>
      <IconButton
        icon={ChevronRight}
        label={t("chat.laterVersion")}
        small
        disabled={at === siblings.length - 1}
        onClick={step(1)}
      />
    </span>
  );
}
