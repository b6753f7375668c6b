/** A chat: its messages, and where the next one is written. Without an id: the beginning of one. */
import { CircleAlert, SearchX } from "lucide-react";
import { useEffect, useState } from "react";
import { useTranslation } from "react-i18next";
import { useNavigate, useParams } from "react-router";
import { type ChatSettings, DEFAULT_SETTINGS } from "@/core/types";
import { changeChat, forgetProblem, openChat, useChats } from "@/state/chats";
import { send } from "@/state/talk";
import { openSheet, useUi } from "@/state/ui";
import { Button } from "@/ui/Button";
import { State } from "@/ui/State";
import { ChatHeader } from "./ChatHeader";
import { ChatSettingsSheet } from "./ChatSettingsSheet";
import { Composer } from "./Composer";
import { MessageList } from "./MessageList";
import { Welcome } from "./Welcome";

export function ChatPage() {
  const { id } = useParams();
  return id === undefined ? <NewChat /> : <OldChat key={id} id={id} />;
}

function NewChat() {
  const { t } = useTranslation();
  const navigate = useNavigate();
  const [settings, setSettings] = useState<ChatSettings>(DEFAULT_SETTINGS);
  useTitle(t("nav.newChat"));
  return (
    <>
      <ChatHeader chat={null} />
      <Welcome />
      <Composer
        chatId={null}
        tree={null}
        settings={settings}
        onSettings={setSettings}
        onSend={(parts) => navigate(`/chat/${send(null, parts, settings)}`)}
      />
      <Settings settings={settings} onSettings={setSettings} />
    </>
  );
}

function OldChat({ id }: { id: string }) {
  const { t } = useTranslation();
  const navigate = useNavigate();
  const found = useChats(({ open }) => open[id]);
  const problem = useChats(({ problems }) => problems[id]);
  useEffect(() => {
    void openChat(id);
    return () => forgetProblem(id);
  }, [id]);
  useTitle(found?.chat.title ?? "");

  if (problem === null) {
    return (
      <State
        icon={SearchX}
        title={t("chat.missingTitle")}
        text={t("chat.missingText")}
        actions={
          <Button tone="primary" onClick={() => navigate("/chat")}>
            {t("nav.newChat")}
          </Button>
        }
      />
    );
  }
  if (problem !== undefined) {
    const retry = () => {
      forgetProblem(id);
      void openChat(id);
    };
    return (
      <State
        icon={CircleAlert}
        title={t("chat.unreadableTitle")}
        text={problem}
        actions={<Button onClick={retry}>{t("common.retry")}</Button>}
      />
    );
  }
  if (!found) return <div aria-busy="true" className="grow" />;
  const { chat, tree } = found;
  const setSettings = (settings: ChatSettings) => changeChat(id, { settings });
  return (
    <>
      <ChatHeader chat={chat} />
      {tree.active === null ? (
        <Welcome />
      ) : (
        <MessageList chatId={id} tree={tree} first={chat.settings.first} />
      )}
      <Composer
        chatId={id}
        tree={tree}
        settings={chat.settings}
        onSettings={setSettings}
        onSend={(parts) => send(id, parts)}
      />
      <Settings settings={chat.settings} onSettings={setSettings} />
    </>
  );
}

function Settings(props: { settings: ChatSettings; onSettings: (settings: ChatSettings) => void }) {
  const open = useUi(({ sheet }) => sheet === "chat-settings");
  return <ChatSettingsSheet open={open} onClose={() => openSheet(null)} {...props} />;
}

function useTitle(title: string): void {
  useEffect(() => {
    document.title = title === "" ? "Colibri" : `${title} · Colibri`;
  }, [title]);
}
