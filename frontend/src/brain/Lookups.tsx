/** Where experts were when they were asked for, prompts and answers apart, since the start. */
import { useTranslation } from "react-i18next";
import type { Found, LiveState } from "@/api/livestate";
import { count, percent } from "@/core/format";
import { Panel } from "./Panel";

const PLACES = ["vram", "resident", "warm", "cache", "guess", "disk"] as const;
const PHASES = ["prefill", "decode"] as const;

export function Lookups({ lookups }: { lookups: LiveState["lookups"] }) {
  const { t, i18n } = useTranslation();
  const sums = { prefill: sumOf(lookups.prefill), decode: sumOf(lookups.decode) };
  const places = PLACES.filter((place) => PHASES.some((phase) => lookups[phase][place] > 0));
  return (
    <Panel title={t("brain.found")}>
      {places.length === 0 ? (
        <p className="text-text-2">{t("brain.nothingAsked")}</p>
      ) : (
        <table className="figures w-full">
          <thead>
            <tr className="text-text-3 text-xs">
              <th scope="col" className="pb-1 text-left font-normal">
                {t("brain.place")}
              </th>
              {PHASES.map((phase) => (
                <th key={phase} scope="col" className="pb-1 pl-3 text-right font-normal">
                  {t(`brain.phase.${phase}`)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {places.map((place) => (
              <tr key={place}>
                <th scope="row" className="py-0.5 text-left font-normal text-text-2">
                  {t(`brain.places.${place}`)}
                </th>
                {PHASES.map((phase) => {
                  const value = lookups[phase][place];
                  return (
                    <td
                      key={phase}
                      title={count(value, i18n.language)}
                      className="py-0.5 pl-3 text-right"
                    >
                      {sums[phase] === 0 ? "–" : percent(value / sums[phase])}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

const sumOf = (found: Found) => PLACES.reduce((sum, place) => sum + found[place], 0);
