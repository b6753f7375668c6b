/** Leads to the licences of others, where the program has them. */
import { useQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { hasLicences, LICENCES } from "@/api/licences";
import { keys } from "@/state/queries";

export function Licences() {
  const { t } = useTranslation();
  const { data } = useQuery({
    queryKey: keys.licences,
    queryFn: ({ signal }) => hasLicences(signal),
    staleTime: Number.POSITIVE_INFINITY,
  });
  if (!data) return null;
  return (
    <a
      href={LICENCES}
      target="_blank"
      rel="noreferrer"
      className="w-fit text-accent underline underline-offset-2"
    >
      {t("prefs.licences")}
    </a>
  );
}
