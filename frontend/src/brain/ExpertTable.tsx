/** The same as the picture in figures: the layers, and the experts of one of them. */
import { clsx } from "clsx";
import { ArrowDown, ArrowUp } from "lucide-react";
import { type ReactNode, useState } from "react";
import { useTranslation } from "react-i18next";
import { type ExpertMap, TIERS, totalsOf } from "@/core/expertmap";
import { count, percent } from "@/core/format";
import { type CellFacts, factsOf } from "./cell";
import { TierName } from "./TierName";

interface ExpertTableProps {
  map: ExpertMap;
  layers: readonly number[];
  marked: number | null;
  onMark: (cell: number | null) => void;
}

export function ExpertTable(props: ExpertTableProps) {
  const { map, layers, marked } = props;
  const { t } = useTranslation();
  const [row, setRow] = useState<number | null>(
    marked === null ? null : Math.floor(marked / map.cols),
  );
  const shown = row !== null && row < map.rows ? row : null;
  return (
    <section
      aria-label={t("brain.table")}
      className="flex flex-col gap-3 rounded-md border border-line bg-surface-1 p-3 sm:p-4"
    >
      <label className="flex items-center gap-2">
        <span className="text-text-2">{t("brain.layer")}</span>
        <select
          value={shown ?? ""}
          onChange={({ target }) => setRow(target.value === "" ? null : Number(target.value))}
          className="field max-w-40"
        >
          <option value="">{t("brain.allLayers")}</option>
          {Array.from({ length: map.rows }, (_, at) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: a row is its number
            <option key={at} value={at}>
              {layers[at] ?? at}
            </option>
          ))}
        </select>
      </label>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: so that the keyboard can scroll */}
      <div tabIndex={0} className="max-h-[58vh] overflow-auto">
        {shown === null ? (
          <Layers map={map} layers={layers} onRow={setRow} />
        ) : (
          <Experts {...props} row={shown} />
        )}
      </div>
    </section>
  );
}

const HEAD = "sticky top-0 z-[1] bg-surface-1 px-2 py-1.5 font-medium text-text-2 text-xs";
const CELL = "px-2 py-1";

function Layers({
  map,
  layers,
  onRow,
}: {
  map: ExpertMap;
  layers: readonly number[];
  onRow: (row: number) => void;
}) {
  const { t, i18n } = useTranslation();
  const number = (value: number) => count(value, i18n.language);
  return (
    <table className="figures w-full text-right">
      <thead>
        <tr>
          <th scope="col" className={clsx(HEAD, "text-left")}>
            {t("brain.layer")}
          </th>
          {[2, 1, 0, 3].map((tier) => (
            <th key={tier} scope="col" className={HEAD}>
              {t(`tier.${TIERS[tier] ?? "disk"}`)}
            </th>
          ))}
          <th scope="col" className={HEAD}>
            {t("brain.askedOf")}
          </th>
          <th scope="col" className={HEAD}>
            {t("brain.requests")}
          </th>
        </tr>
      </thead>
      <tbody>
        {Array.from({ length: map.rows }, (_, row) => {
          const { tiers, asked, hits } = totalsOf(map, row * map.cols, (row + 1) * map.cols);
          return (
            // biome-ignore lint/suspicious/noArrayIndexKey: a row is its number
            <tr key={row} className="border-line border-t">
              <th scope="row" className={clsx(CELL, "text-left font-normal")}>
                <button
                  type="button"
                  onClick={() => onRow(row)}
                  className="text-accent underline underline-offset-2"
                >
                  {t("brain.layerOf", { layer: layers[row] ?? row })}
                </button>
              </th>
              {([2, 1, 0, 3] as const).map((tier) => (
                <td key={tier} className={CELL}>
                  {number(tiers[tier])}
                </td>
              ))}
              <td className={CELL}>{number(asked)}</td>
              <td className={CELL}>{number(hits)}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

type Column = "expert" | "tier" | "heat" | "hits";

function Experts({ map, layers, marked, onMark, row }: ExpertTableProps & { row: number }) {
  const { t, i18n } = useTranslation();
  const [by, setBy] = useState<Column>("heat");
  const [down, setDown] = useState(true);
  const facts = Array.from({ length: map.cols }, (_, col) =>
    factsOf(map, layers, row * map.cols + col),
  ).sort((a, b) => (down ? -1 : 1) * (rankOf(a, by) - rankOf(b, by)) || a.cell - b.cell);

  const head = (column: Column, name: string) => (
    <Head
      sorted={by === column ? (down ? "descending" : "ascending") : "none"}
      onSort={() => {
        setBy(column);
        // Names go up, amounts go down.
        setDown(by === column ? !down : column !== "expert");
      }}
    >
      {name}
    </Head>
  );
  return (
    <table className="figures w-full">
      <thead>
        <tr>
          {head("expert", t("brain.expert"))}
          {head("tier", t("brain.tier"))}
          {head("heat", t("brain.heat"))}
          {head("hits", t("brain.inTurn"))}
        </tr>
      </thead>
      <tbody>
        {facts.map((fact) => (
          <tr
            key={fact.cell}
            className={clsx("border-line border-t", fact.cell === marked && "bg-accent-soft")}
          >
            <th scope="row" className={clsx(CELL, "text-left font-normal")}>
              <button
                type="button"
                aria-pressed={fact.cell === marked}
                onClick={() => onMark(fact.cell === marked ? null : fact.cell)}
                className="whitespace-nowrap text-accent-strong underline underline-offset-2"
              >
                {t("brain.expertOf", { expert: fact.expert })}
              </button>
            </th>
            <td className={CELL}>
              <TierName tier={fact.tier} />
            </td>
            <td className={CELL}>{percent(fact.heat)}</td>
            <td className={CELL}>{count(fact.hits, i18n.language)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** From slow to fast; what is on its way lies between. */
const RANKS = { disk: 0, coming: 1, ram: 2, vram: 3 };

const rankOf = (fact: CellFacts, by: Column) => (by === "tier" ? RANKS[fact.tier] : fact[by]);

interface HeadProps {
  sorted: "ascending" | "descending" | "none";
  onSort: () => void;
  children: ReactNode;
}

function Head({ sorted, onSort, children }: HeadProps) {
  const Arrow = sorted === "ascending" ? ArrowUp : ArrowDown;
  return (
    <th scope="col" aria-sort={sorted} className={clsx(HEAD, "text-left")}>
      <button type="button" onClick={onSort} className="inline-flex items-center gap-1">
        {children}
        <Arrow size={12} aria-hidden="true" className={clsx(sorted === "none" && "invisible")} />
      </button>
    </th>
  );
}
