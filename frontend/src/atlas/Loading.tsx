/** Over the place of the atlas, until there is something to see. */
import { LoaderCircle } from "lucide-react";
import { useTranslation } from "react-i18next";

export function Loading() {
  const { t } = useTranslation();
  return (
    <p
      aria-busy="true"
      className="absolute inset-0 flex items-center justify-center gap-2 p-6 text-text-2"
    >
      <LoaderCircle size={18} aria-hidden="true" className="animate-spin" />
      {t("atlas.loading")}
    </p>
  );
}
