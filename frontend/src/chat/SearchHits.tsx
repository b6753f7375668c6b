/** What a search over all chats has found. */
import { useQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { Link } from "react-router";
import { openChat, showBranch } from "@/state/chats";
import { chatStore, type SearchHit } from "@/state/chatstore";
import { keys } from "@/state/queries";
import { openSheet } from "@/state/ui";

export function SearchHits({ words }: { words: string }) {
  const { t } = useTranslation();
  const { data, error } = useQuery({
    queryKey: keys.search(words),
    queryFn: async () => (await chatStore()).search(words),
    placeholderData: (old) => old,
  });
  return (
    <ul aria-label={t("list.hits")} className="min-h-0 grow space-y-px overflow-y-auto px-2 pb-2">
      {data?.map((hit) => (
        <Hit key={hit.id + hit.message} hit={hit} />
      ))}
      {error && <li className="px-2 py-3 text-danger text-xs">{error.message}</li>}
      {data?.length === 0 && <li className="px-2 py-3 text-text-3 text-xs">{t("list.noHits")}</li>}
    </ul>
  );
}

function Hit({ hit }: { hit: SearchHit }) {
  const { t } = useTranslation();
  const pieces = hit.pieces.map((piece, at) => ({ ...piece, key: `${at} ${piece.text}` }));

  async function show(): Promise<void> {
    openSheet(null);
    await openChat(hit.id);
    if (hit.message !== null) showBranch(hit.id, hit.message);
  }

  return (
    <li>
      <Link
        to={`/chat/${hit.id}`}
        onClick={() => void show()}
        className="block rounded-sm px-2 py-1.5 hover:bg-surface-2"
      >
        <span className="block truncate">{hit.title || t("chat.untitled")}</span>
        {pieces.length > 0 && (
          <span className="line-clamp-2 text-text-3 text-xs">
            {pieces.map(({ key, text, hit: found }) =>
              found ? (
                <mark key={key} className="bg-accent-soft text-accent-strong">
                  {text}
                </mark>
              ) : (
                <span key={key}>{text}</span>
              ),
            )}
          </span>
        )}
      </Link>
    </li>
  );
}
