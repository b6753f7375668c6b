/** The server: where it is, who may use it, how other programs are set up, what it is asked, its log. */
import { TriangleAlert } from "lucide-react";
import { useTranslation } from "react-i18next";
import { useServerInfo } from "@/state/server";
import { isHome, useSession } from "@/state/session";
import { Button } from "@/ui/Button";
import { Page } from "@/ui/Page";
import { State } from "@/ui/State";
import { Access } from "./Access";
import { Clients } from "./Clients";
import { LogView } from "./LogView";
import { Requests } from "./Requests";

export default function ServerPage() {
  const { t } = useTranslation();
  const home = useSession(isHome);
  return (
    <Page title={t("nav.server")}>
      {home ? (
        <Parts />
      ) : (
        <State icon={TriangleAlert} title={t("server.notHere")} text={t("server.notHereText")} />
      )}
    </Page>
  );
}

function Parts() {
  const { t } = useTranslation();
  const { data, error, refetch } = useServerInfo();
  if (!data) {
    return error ? (
      <State
        icon={TriangleAlert}
        title={t("server.unreachable")}
        text={error.message}
        actions={<Button onClick={() => void refetch()}>{t("common.retry")}</Button>}
      />
    ) : (
      <div aria-busy="true" />
    );
  }
  return (
    <>
      <Access info={data} />
      <Clients info={data} />
      <Requests />
      <LogView />
    </>
  );
}
