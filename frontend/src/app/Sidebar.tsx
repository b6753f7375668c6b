/** The name, the pages, and the chats. */
import { clsx } from "clsx";
import { Keyboard } from "lucide-react";
import { useTranslation } from "react-i18next";
import { NavLink } from "react-router";
import { ChatList } from "@/chat/ChatList";
import { openSheet } from "@/state/ui";
import { IconButton } from "@/ui/Button";
import { Logo } from "@/ui/Logo";
import { PAGES, type Page } from "./pages";

export function Sidebar() {
  const { t } = useTranslation();
  return (
    <div className="flex h-full flex-col">
      <div className="flex h-12 shrink-0 items-center gap-2 px-3">
        <Logo size={26} />
        <span className="grow font-semibold text-[0.95rem] tracking-tight">Colibri</span>
        <IconButton
          icon={Keyboard}
          label={t("shortcuts.title")}
          keys="?"
          small
          onClick={() => openSheet("shortcuts")}
        />
      </div>
      <nav aria-label={t("nav.label")} className="px-2 pb-3">
        <ul className="space-y-px">
          {PAGES.filter((page) => !page.last).map((page) => (
            <Entry key={page.name} page={page} />
          ))}
        </ul>
      </nav>
      <ChatList />
      <nav aria-label={t("nav.more")} className="border-line border-t p-2">
        <ul>
          {PAGES.filter((page) => page.last).map((page) => (
            <Entry key={page.name} page={page} />
          ))}
        </ul>
      </nav>
    </div>
  );
}

function Entry({ page: { name, path, icon: Icon } }: { page: Page }) {
  const { t } = useTranslation();
  return (
    <li>
      <NavLink
        to={path}
        onClick={() => openSheet(null)}
        className={({ isActive }) =>
          clsx(
            "flex h-8 items-center gap-2.5 rounded-sm px-2.5",
            isActive
              ? "bg-surface-2 font-medium text-text-1"
              : "text-text-2 hover:bg-surface-2 hover:text-text-1",
          )
        }
      >
        <Icon size={16} aria-hidden="true" className="shrink-0" />
        {t(`nav.${name}`)}
      </NavLink>
    </li>
  );
}
