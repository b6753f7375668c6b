/** Where the server is and who may use it, each with what it means and how it is changed. */

import type { LucideIcon } from "lucide-react";
import { Globe, KeyRound, Link2, Monitor, Server } from "lucide-react";
import type { ReactNode } from "react";
import { useTranslation } from "react-i18next";
import type { ServerInfo } from "@/api/server";
import { CopyLine } from "@/ui/CopyLine";
import { Part } from "@/ui/Page";

export function Access({ info }: { info: ServerInfo }) {
  const { t } = useTranslation();
  const url = addressOf(info);
  const open = !info.this_machine_only && !info.key_set;
  return (
    <Part title={t("server.access")}>
      <dl className="grid gap-4 md:grid-cols-2">
        <Fact icon={Server} name={t("server.address")} note={t("server.addressNote")}>
          <CopyLine text={`${url}/v1`} label={t("server.copyAddress")} />
        </Fact>
        <Fact
          icon={Monitor}
          name={t("server.reach")}
          note={t(info.this_machine_only ? "server.localNote" : "server.networkNote")}
        >
          {t(info.this_machine_only ? "server.local" : "server.network", { host: info.host })}
        </Fact>
        <Fact
          icon={KeyRound}
          name={t("server.key")}
          note={t(info.key_set ? "server.keySetNote" : "server.keyNoneNote")}
          warn={open}
        >
          {t(info.key_set ? "server.keySet" : "server.keyNone")}
        </Fact>
        <Fact icon={Globe} name={t("server.hosts")} note={t("server.hostsNote")}>
          <Values list={info.allowed_hosts} none={t("server.hostsNone")} />
        </Fact>
        <Fact icon={Link2} name={t("server.origins")} note={t("server.originsNote")}>
          {info.cors_origins.includes("*") ? (
            t("server.originsAll")
          ) : (
            <Values list={info.cors_origins} none={t("server.originsNone")} />
          )}
        </Fact>
      </dl>
      <p className="text-text-3 text-xs">{t("server.change", { file: info.config_file })}</p>
    </Part>
  );
}

/** The address as this page has reached it: that is one that works from here. */
export function addressOf(info: ServerInfo): string {
  return typeof location === "undefined" ? (info.url ?? "") : location.origin;
}

function Fact({
  icon: Icon,
  name,
  note,
  warn,
  children,
}: {
  icon: LucideIcon;
  name: string;
  note: string;
  warn?: boolean;
  children: ReactNode;
}) {
  return (
    <div className="min-w-0 rounded-md border border-line bg-surface-1 p-3">
      <dt className="flex items-center gap-2 text-text-2">
        <Icon size={15} aria-hidden="true" className="shrink-0" />
        {name}
      </dt>
      <dd className="mt-1.5">
        <div className="font-medium">{children}</div>
        <p className={warn ? "mt-1 text-warn text-xs" : "mt-1 text-text-3 text-xs"}>{note}</p>
      </dd>
    </div>
  );
}

function Values({ list, none }: { list: string[]; none: string }) {
  return list.length === 0 ? none : <span className="code break-all">{list.join(", ")}</span>;
}
