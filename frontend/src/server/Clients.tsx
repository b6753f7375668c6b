/** Settings of editors, agents and SDKs for this very server, to be copied. */
import { useState } from "react";
import { useTranslation } from "react-i18next";
import type { ServerInfo } from "@/api/server";
import { CodeBlock } from "@/chat/CodeBlock";
import { type Client, fill } from "@/core/snippet";
import { useModels } from "@/state/models";
import { Field } from "@/ui/Field";
import { Part } from "@/ui/Page";
import { addressOf } from "./Access";
import clients from "./clients.json";

const CLIENTS: readonly Client[] = clients;
const NO_CONTEXT = 32_768;
const NOTES = ["claude-code", "crush", "cline", "anthropic-python"] as const;

export function Clients({ info }: { info: ServerInfo }) {
  const { t } = useTranslation();
  const { model } = useModels();
  const [chosen, setChosen] = useState(CLIENTS[0]?.id ?? "");
  const client = CLIENTS.find(({ id }) => id === chosen);
  const values = {
    url: addressOf(info),
    model: model?.id ?? "MODEL",
    // A key is never shown: whoever copies this has it elsewhere.
    key: info.key_set ? "YOUR_KEY" : "local",
    context: model?.context_length ?? NO_CONTEXT,
  };
  const note = NOTES.find((name) => name === chosen);
  return (
    <Part title={t("server.clients")} text={t("server.clientsText")}>
      <div className="max-w-80">
        <Field label={t("server.client")}>
          {(id) => (
            <select
              id={id}
              value={chosen}
              onChange={(event) => setChosen(event.target.value)}
              className="field"
            >
              {CLIENTS.map(({ id: value, name }) => (
                <option key={value} value={value}>
                  {name}
                </option>
              ))}
            </select>
          )}
        </Field>
      </div>
      {client?.blocks.map(({ file, language, text }) => (
        <div key={`${client.id} ${file ?? language}`} className="min-w-0">
          {file && <p className="mb-1.5 text-text-2">{t("server.inFile", { file })}</p>}
          <CodeBlock language={language} code={fill(text, values)} live={false} />
        </div>
      ))}
      {info.key_set && <p className="text-text-2 text-xs">{t("server.yourKey")}</p>}
      {note && <p className="text-text-2 text-xs">{t(`server.note.${note}`)}</p>}
    </Part>
  );
}
