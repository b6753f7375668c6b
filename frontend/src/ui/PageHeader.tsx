/** The line above a page that is no chat: its name, and what it is steered with. */

import { clsx } from "clsx";
import { Menu as MenuIcon } from "lucide-react";
import type { ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { openSheet } from "@/state/ui";
import { IconButton } from "./Button";

export function PageHeader({ title, children }: { title: string; children?: ReactNode }) {
  const { t } = useTranslation();
  return (
    <header className="flex min-h-12 shrink-0 flex-wrap items-center gap-x-3 gap-y-1.5 border-line border-b px-2 py-1.5 sm:px-4">
      <div className={clsx("flex grow items-center gap-1", children && "max-sm:basis-full")}>
        <IconButton
          icon={MenuIcon}
          label={t("nav.menu")}
          className="lg:hidden"
          onClick={() => openSheet("sidebar")}
        />
        <h1 className="px-2 font-semibold">{title}</h1>
      </div>
      {children}
    </header>
  );
}
