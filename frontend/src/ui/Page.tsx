/** What the pages beside the chat have in common: a head with the menu, and a column that scrolls. */
import { Menu as MenuIcon } from "lucide-react";
import { type ReactNode, useEffect } from "react";
import { useTranslation } from "react-i18next";
import { openSheet } from "@/state/ui";
import { IconButton } from "./Button";

interface PageProps {
  title: string;
  /** Stands at the right of the title. */
  tools?: ReactNode;
  children: ReactNode;
}

export function Page({ title, tools, children }: PageProps) {
  const { t } = useTranslation();
  useEffect(() => {
    document.title = `${title} · Colibri`;
  }, [title]);
  return (
    <>
      <header className="flex h-12 shrink-0 items-center gap-2 border-line border-b px-2 sm:px-4">
        <IconButton
          icon={MenuIcon}
          label={t("nav.menu")}
          className="lg:hidden"
          onClick={() => openSheet("sidebar")}
        />
        <h1 className="grow px-2 font-semibold">{title}</h1>
        {tools}
      </header>
      <div className="min-h-0 grow overflow-y-auto">
        <div className="mx-auto flex max-w-5xl flex-col gap-8 px-4 py-6">{children}</div>
      </div>
    </>
  );
}

/** A part of a page under a heading. */
export function Part({
  title,
  text,
  tools,
  children,
}: {
  title: string;
  text?: ReactNode;
  tools?: ReactNode;
  children: ReactNode;
}) {
  return (
    <section aria-label={title} className="flex flex-col gap-4">
      <div className="flex flex-wrap items-end justify-between gap-3">
        <div>
          <h2 className="font-semibold text-base">{title}</h2>
          {text && <p className="mt-1 max-w-2xl text-text-2">{text}</p>}
        </div>
        {tools}
      </div>
      {children}
    </section>
  );
}
