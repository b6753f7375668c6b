/** The atlas in rows: everything that the galaxy shows, for who cannot or does not want to look at it. */
import { clsx } from "clsx";
import { ArrowDown, ArrowUp, BrainCircuit, ChevronLeft, ChevronRight } from "lucide-react";
import { memo, useDeferredValue, useMemo, useState } from "react";
import { useTranslation } from "react-i18next";
import { Link } from "react-router";
import type { Atlas } from "@/core/atlas";
import { type Column, sortedExperts } from "@/core/atlasview";
import { count, percent } from "@/core/format";
import { setAtlasView, useAtlasView } from "@/state/atlas";
import { IconButton } from "@/ui/Button";
import { brainPath, expertName } from "./ExpertCard";
import { topicColour } from "./palette";

const PAGE = 50;
/** Where there is little room, what tells most is shown. */
const COLUMNS: readonly { column: Column; className: string }[] = [
  { column: "expert", className: "" },
  { column: "topic", className: "" },
  { column: "share", className: "text-right" },
  { column: "entropy", className: "text-right @max-xl:hidden" },
  { column: "kind", className: "@max-xl:hidden" },
];

interface AtlasTableProps {
  atlas: Atlas;
  shown: Uint8Array;
  /** There is a galaxy to show an expert in. */
  drawable: boolean;
}

export function AtlasTable({ atlas, shown, drawable }: AtlasTableProps) {
  const { t } = useTranslation();
  const { order } = useAtlasView();
  const rows = useMemo(() => sortedExperts(atlas, shown, order), [atlas, shown, order]);
  const [page, setPage] = useState(0);
  const pages = Math.max(1, Math.ceil(rows.length / PAGE));
  const at = Math.min(page, pages - 1);
  const from = at * PAGE;
  const visible = useMemo(() => rows.subarray(from, from + PAGE), [rows, from]);
  // A press is shown at once; the rows follow, a few at a time.
  const settled = useDeferredValue(visible);

  if (rows.length === 0) {
    return <p className="m-auto p-6 text-text-2">{t("atlas.nothing")}</p>;
  }
  return (
    <div className="flex min-h-0 grow flex-col">
      <section
        aria-label={t("atlas.table")}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached with keys
        tabIndex={0}
        className="@container min-h-0 grow overflow-y-auto focus-visible:outline-offset-[-2px]"
      >
        <table className="w-full text-left">
          <thead className="sticky top-0 bg-surface-0">
            <tr>
              {COLUMNS.map(({ column, className }) => (
                <Head key={column} column={column} className={className} />
              ))}
              <th scope="col" className="w-10">
                <span className="sr-only">{t("nav.brain")}</span>
              </th>
            </tr>
          </thead>
          <Rows atlas={atlas} experts={settled} drawable={drawable} />
        </table>
      </section>
      {pages > 1 && (
        <Pages at={at} pages={pages} from={from} total={rows.length} onTurn={setPage} />
      )}
    </div>
  );
}

interface RowsProps {
  atlas: Atlas;
  experts: Uint32Array;
  drawable: boolean;
}

const Rows = memo(function Rows({ atlas, experts, drawable }: RowsProps) {
  return (
    <tbody className="figures divide-y divide-line">
      {Array.from(experts, (expert) => (
        <Row key={expert} atlas={atlas} at={expert} drawable={drawable} />
      ))}
    </tbody>
  );
});

function Head({ column, className }: { column: Column; className: string }) {
  const { t } = useTranslation();
  const { order } = useAtlasView();
  const sorted = order.column === column;
  const Icon = order.down ? ArrowDown : ArrowUp;
  return (
    <th
      scope="col"
      aria-sort={sorted ? (order.down ? "descending" : "ascending") : "none"}
      className={clsx("border-line border-b px-2 py-1 font-medium sm:px-4", className)}
    >
      <button
        type="button"
        onClick={() =>
          // Numbers are most interesting from the largest on, names from the first.
          setAtlasView({
            order: { column, down: sorted ? !order.down : column === "share" || column === "kind" },
          })
        }
        className="inline-flex items-center gap-1 rounded-sm py-1 text-xs hover:text-accent"
      >
        {t(`atlas.column.${column}`)}
        {sorted && <Icon size={13} aria-hidden="true" />}
      </button>
    </th>
  );
}

function Row({ atlas, at, drawable }: { atlas: Atlas; at: number; drawable: boolean }) {
  const { t, i18n } = useTranslation();
  const topic = atlas.top[at] ?? 0;
  const name = expertName(atlas, at, t);
  const cell = "px-2 py-1.5 sm:px-4";
  return (
    <tr>
      <th scope="row" className={clsx(cell, "font-normal")}>
        {drawable ? (
          <button
            type="button"
            title={t("atlas.showInGalaxy")}
            onClick={() => setAtlasView({ selected: at, table: false })}
            className="rounded-sm text-left text-accent underline-offset-2 hover:underline"
          >
            {name}
          </button>
        ) : (
          name
        )}
      </th>
      <td className={cell}>
        <span className="flex items-center gap-2">
          <span
            aria-hidden="true"
            className="size-2.5 shrink-0 rounded-full"
            style={{ background: topicColour(atlas, topic) }}
          />
          {atlas.topics[topic]}
        </span>
      </td>
      <td className={clsx(cell, "whitespace-nowrap text-right")}>
        {percent(atlas.share[at] ?? 0)}
      </td>
      <td className={clsx(cell, "text-right @max-xl:hidden")}>
        {t("atlas.bits", {
          bits: (atlas.entropy[at] ?? 0).toLocaleString(i18n.language, {
            minimumFractionDigits: 2,
            maximumFractionDigits: 2,
          }),
        })}
      </td>
      <td className={clsx(cell, "@max-xl:hidden")}>
        {t(atlas.specialist[at] ? "atlas.specialist" : "atlas.generalist")}
      </td>
      <td className="px-1 text-right">
        <Link
          to={brainPath(atlas, at)}
          aria-label={t("atlas.inBrain", { name })}
          title={t("atlas.toBrain")}
          className="inline-flex size-7 items-center justify-center rounded-sm text-text-2 hover:bg-surface-2 hover:text-text-1"
        >
          <BrainCircuit size={15} aria-hidden="true" />
        </Link>
      </td>
    </tr>
  );
}

interface PagesProps {
  at: number;
  pages: number;
  from: number;
  total: number;
  onTurn: (page: number) => void;
}

function Pages({ at, pages, from, total, onTurn }: PagesProps) {
  const { t, i18n } = useTranslation();
  const number = (value: number) => count(value, i18n.language);
  return (
    <nav
      aria-label={t("atlas.pages")}
      className="flex shrink-0 items-center justify-end gap-2 border-line border-t px-2 py-1 sm:px-4"
    >
      <span className="figures text-text-2 text-xs">
        {t("atlas.rows", {
          from: number(from + 1),
          to: number(Math.min(total, from + PAGE)),
          total: number(total),
        })}
      </span>
      <IconButton
        icon={ChevronLeft}
        label={t("atlas.previous")}
        disabled={at === 0}
        onClick={() => onTurn(at - 1)}
      />
      <IconButton
        icon={ChevronRight}
        label={t("atlas.next")}
        disabled={at >= pages - 1}
        onClick={() => onTurn(at + 1)}
      />
    </nav>
  );
}
