/** The measured atlas: what each expert is asked for, as a galaxy to look at and as a table to read. */
import { ListFilter, Menu as MenuIcon, RotateCcw } from "lucide-react";
import { useDeferredValue, useEffect, useMemo, useState } from "react";
import { useTranslation } from "react-i18next";
import { AtlasLegend } from "@/atlas/AtlasLegend";
import { AtlasForeign, AtlasMissing } from "@/atlas/AtlasMissing";
import { AtlasTable } from "@/atlas/AtlasTable";
import { Galaxy } from "@/atlas/Galaxy";
import { Loading } from "@/atlas/Loading";
import type { Atlas } from "@/core/atlas";
import { countShown, shownExperts } from "@/core/atlasview";
import { HOME } from "@/core/orbit";
import { ALL, cameraTarget, setAtlasView, setFilter, useAtlas, useAtlasView } from "@/state/atlas";
import { usePrefs } from "@/state/prefs";
import { isHome, useSession } from "@/state/session";
import { openSheet } from "@/state/ui";
import { Boundary } from "@/ui/Boundary";
import { Button, IconButton } from "@/ui/Button";
import { Segments } from "@/ui/Segments";
import { Sheet } from "@/ui/Sheet";

export default function AtlasPage() {
  const { t } = useTranslation();
  const home = useSession(isHome);
  const foreign = usePrefs(({ base }) => base !== "");
  useEffect(() => {
    document.title = `${t("nav.atlas")} · Colibri`;
  }, [t]);
  if (foreign || !home) {
    return (
      <>
        <Header />
        <AtlasForeign />
      </>
    );
  }
  return <HomeAtlas />;
}

function HomeAtlas() {
  const { data, error, isFetching, refetch } = useAtlas(true);
  if (data) return <Shown atlas={data} />;
  return (
    <>
      <Header />
      {error ? (
        <AtlasMissing error={error} looking={isFetching} onRetry={() => void refetch()} />
      ) : (
        <div className="relative grow">
          <Loading />
        </div>
      )}
    </>
  );
}

function Header({ children }: { children?: React.ReactNode }) {
  const { t } = useTranslation();
  return (
    <header className="flex h-12 shrink-0 items-center gap-2 border-line border-b px-2 sm:px-4">
      <IconButton
        icon={MenuIcon}
        label={t("nav.menu")}
        className="lg:hidden"
        onClick={() => openSheet("sidebar")}
      />
      <h1 className="min-w-0 grow truncate px-2 font-semibold">{t("nav.atlas")}</h1>
      {children}
    </header>
  );
}

function Shown({ atlas }: { atlas: Atlas }) {
  const { t } = useTranslation();
  const { table, filter, selected: wanted, drawable } = useAtlasView();
  // Another model may have fewer.
  const selected = wanted < atlas.count ? wanted : -1;
  const [legend, setLegend] = useState(false);
  // Typing goes before filtering.
  const settled = useDeferredValue(filter);
  const shown = useMemo(() => shownExperts(atlas, settled), [atlas, settled]);
  const number = useMemo(() => countShown(shown), [shown]);
  const asTable = table || !drawable;
  // The choice is shown at once, what was chosen a moment later.
  const tableShown = useDeferredValue(asTable);

  return (
    <>
      <Header>
        {drawable && (
          <div className="flex shrink-0">
            <Segments
              label={t("atlas.view")}
              value={asTable ? "table" : "galaxy"}
              options={[
                { value: "galaxy", label: t("atlas.asGalaxy") },
                { value: "table", label: t("atlas.asTable") },
              ]}
              onChange={(value) => setAtlasView({ table: value === "table" })}
            />
          </div>
        )}
      </Header>
      <div className="flex min-h-0 grow">
        <div className="flex min-w-0 grow flex-col">
          <div className="flex shrink-0 flex-wrap items-center gap-2 px-2 py-2 sm:px-4">
            <input
              type="search"
              value={filter.query}
              aria-label={t("atlas.search")}
              placeholder={t("atlas.searchHint")}
              onChange={(event) => setFilter({ query: event.target.value })}
              className="field w-0 min-w-32 max-w-xs grow"
            />
            <IconButton
              icon={ListFilter}
              label={t("atlas.topics")}
              className="md:hidden"
              active={filter.topics.length > 0 || filter.kind !== "all"}
              onClick={() => setLegend(true)}
            />
            <IconButton
              icon={RotateCcw}
              label={t("atlas.reset")}
              onClick={() => {
                Object.assign(cameraTarget, HOME);
                // A new filter, even if it is the same: the picture is drawn again.
                setAtlasView({ filter: { ...ALL }, selected: -1 });
              }}
            />
            <p role="status" className="figures text-text-2 text-xs max-sm:basis-full sm:ml-auto">
              {t("atlas.shown", { number, count: atlas.count })}
            </p>
          </div>
          {!drawable && (
            <p className="mx-2 mb-2 rounded-sm bg-warn-soft px-3 py-2 text-warn text-xs sm:mx-4">
              {t("atlas.noWebgl")}
            </p>
          )}
          {tableShown ? (
            <AtlasTable atlas={atlas} shown={shown} drawable={drawable} />
          ) : (
            <Picture atlas={atlas} shown={shown} selected={selected} />
          )}
        </div>
        <aside
          aria-label={t("atlas.topics")}
          className="hidden w-[17.5rem] shrink-0 overflow-y-auto border-line border-l bg-surface-1 p-4 md:block"
        >
          <AtlasLegend atlas={atlas} />
        </aside>
      </div>
      <Sheet open={legend} onClose={() => setLegend(false)} title={t("atlas.topics")} side="right">
        <AtlasLegend atlas={atlas} />
      </Sheet>
    </>
  );
}

function Picture({
  atlas,
  shown,
  selected,
}: {
  atlas: Atlas;
  shown: Uint8Array;
  selected: number;
}) {
  const { t } = useTranslation();
  const [lost, setLost] = useState(false);
  const toTable = (
    <Button small onClick={() => setAtlasView({ table: true })}>
      {t("atlas.toTable")}
    </Button>
  );
  return (
    <div className="relative min-h-0 grow">
      <Boundary
        about={atlas}
        fallback={(error, retry) => (
          <div role="alert" className="m-4 rounded-md bg-danger-soft p-4 text-danger">
            <p>{t("atlas.notDrawn")}</p>
            <p className="mt-1 text-text-2 text-xs">{error.message}</p>
            <div className="mt-3 flex gap-2">
              <Button small onClick={retry}>
                {t("common.retry")}
              </Button>
              {toTable}
            </div>
          </div>
        )}
      >
        <Galaxy atlas={atlas} shown={shown} selected={selected} onLost={setLost} />
      </Boundary>
      {lost && (
        <div
          role="alert"
          className="absolute inset-x-4 top-4 flex flex-wrap items-center justify-between gap-2 rounded-md bg-warn-soft p-3 text-warn"
        >
          {t("atlas.lost")}
          {toTable}
        </div>
      )}
    </div>
  );
}
