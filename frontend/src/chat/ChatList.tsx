/** All chats, and the search over what was said in them. */
import { useQuery } from "@tanstack/react-query";
import { Download, Ellipsis, Plus, Search, Upload, X } from "lucide-react";
import { useDeferredValue, useState } from "react";
import { useTranslation } from "react-i18next";
import { useNavigate } from "react-router";
import { exportJson, ImportError, importJson } from "@/core/exchange";
import { saveText } from "@/desktop/saveText";
import { chatStore } from "@/state/chatstore";
import { chatsChanged, keys } from "@/state/queries";
import { notify, openSheet } from "@/state/ui";
import { Button, IconButton } from "@/ui/Button";
import { chooseFiles } from "@/ui/files";
import { keyNames } from "@/ui/Kbd";
import { Menu } from "@/ui/Menu";
import { ChatRow } from "./ChatRow";
import { SearchHits } from "./SearchHits";

export function ChatList() {
  const { t } = useTranslation();
  const navigate = useNavigate();
  const [words, setWords] = useState("");
  const query = useDeferredValue(words.trim());
  const { data, error, refetch } = useQuery({
    queryKey: keys.chats,
    queryFn: async () => {
      const store = await chatStore();
      return { kind: store.kind, chats: await store.list() };
    },
  });
  const chats = data?.chats ?? [];

  return (
    <section aria-label={t("list.label")} className="flex min-h-0 grow flex-col">
      <div className="flex items-center gap-1 px-2 pb-2">
        <Button
          icon={Plus}
          className="grow"
          title={keyNames("Mod+Shift+O")}
          onClick={() => {
            openSheet(null);
            navigate("/chat");
          }}
        >
          {t("nav.newChat")}
        </Button>
        <ListMenu />
      </div>
      <div className="relative px-2 pb-2">
        <Search
          size={14}
          aria-hidden="true"
          className="absolute top-[0.6rem] left-4.5 text-text-3"
        />
        <input
          id="chat-search"
          type="search"
          aria-label={t("list.search")}
          placeholder={t("list.search")}
          value={words}
          onChange={(event) => setWords(event.target.value)}
          onKeyDown={(event) => event.key === "Escape" && setWords("")}
          className="field px-8 [&::-webkit-search-cancel-button]:hidden"
        />
        {words !== "" && (
          <IconButton
            icon={X}
            label={t("list.clearSearch")}
            small
            onClick={() => setWords("")}
            className="absolute top-[0.15rem] right-2.5"
          />
        )}
      </div>
      {query !== "" ? (
        <SearchHits words={query} />
      ) : (
        <ul className="min-h-0 grow space-y-px overflow-y-auto px-2 pb-2">
          {chats.map((chat) => (
            <ChatRow key={chat.id} chat={chat} />
          ))}
          {error && (
            <li className="flex flex-col items-start gap-2 px-2 py-3 text-text-2 text-xs">
              {t("list.problem", { reason: error.message })}
              <Button small onClick={() => void refetch()}>
                {t("common.retry")}
              </Button>
            </li>
          )}
          {data && chats.length === 0 && (
            <li className="px-2 py-3 text-text-3 text-xs">{t("list.empty")}</li>
          )}
        </ul>
      )}
      {data?.kind === "memory" && (
        <p className="mx-2 mb-2 rounded-sm bg-warn-soft px-2 py-1.5 text-warn text-xs">
          {t("list.memory")}
        </p>
      )}
    </section>
  );
}

function ListMenu() {
  const { t } = useTranslation();

  async function importFiles(): Promise<void> {
    for (const file of await chooseFiles(".json,application/json", true)) {
      try {
        const chats = importJson(await file.text(), Date.now());
        const count = await (await chatStore()).take(chats);
        notify("info", t("list.imported", { count }));
      } catch (error) {
        const reason = error instanceof ImportError ? t(`import.${error.reason}`) : String(error);
        notify("problem", t("list.notImported", { name: file.name, reason }));
      }
    }
    chatsChanged();
  }

  async function exportAll(): Promise<void> {
    try {
      const chats = await (await chatStore()).all();
      await saveText("colibri-chats.json", exportJson(chats), "application/json");
    } catch (error) {
      notify("problem", t("list.notExported", { reason: String(error) }));
    }
  }

  return (
    <Menu
      trigger={<IconButton icon={Ellipsis} label={t("list.menu")} />}
      groups={[
        [
          { label: t("list.import"), icon: Upload, onSelect: () => void importFiles() },
          { label: t("list.exportAll"), icon: Download, onSelect: () => void exportAll() },
        ],
      ]}
    />
  );
}
