/** A line to be copied: a command, an address, a folder. */
import { Check, Copy } from "lucide-react";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { IconButton } from "./Button";
import { copyText } from "./files";

export function CopyLine({ text, label }: { text: string; label: string }) {
  const { t } = useTranslation();
  const [copied, setCopied] = useState(false);

  async function copy(): Promise<void> {
    setCopied(await copyText(text));
    setTimeout(() => setCopied(false), 1500);
  }

  return (
    <div className="flex min-w-0 items-center gap-1 rounded-sm border border-line bg-surface-2 pr-0.5 pl-2.5">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what is wider than the page is scrolled with the keyboard */}
      <code tabIndex={0} className="code min-w-0 grow overflow-x-auto whitespace-nowrap py-1.5">
        {text}
      </code>
      <IconButton
        icon={copied ? Check : Copy}
        label={copied ? t("chat.copied") : label}
        small
        onClick={() => void copy()}
      />
    </div>
  );
}
