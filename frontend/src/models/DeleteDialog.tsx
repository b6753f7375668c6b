/** Deleting a model: first what would go, from the server itself, then the question. */
import { useQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { deleteModel, proposeDelete } from "@/api/installed";
import { bytes, count } from "@/core/format";
import { modelDeleted, modelsChanged } from "@/state/installed";
import { notify } from "@/state/ui";
import { Button } from "@/ui/Button";
import { Sheet } from "@/ui/Sheet";

export function DeleteDialog({ name, onClose }: { name: string | null; onClose: () => void }) {
  const { t, i18n } = useTranslation();
  const { data, error } = useQuery({
    queryKey: ["deletion", name],
    queryFn: () => proposeDelete(name ?? ""),
    enabled: name !== null,
    gcTime: 0,
    staleTime: 0,
    refetchOnWindowFocus: false,
    retry: false,
  });

  async function remove(): Promise<void> {
    if (name === null || !data) return;
    onClose();
    try {
      const { freed_bytes } = await deleteModel(name, data.confirm);
      modelDeleted(name);
      notify("info", t("models.deleted", { name, size: bytes(freed_bytes, i18n.language) }));
    } catch (problem) {
      notify("problem", problem instanceof Error ? problem.message : "");
    }
    modelsChanged();
  }

  return (
    <Sheet
      open={name !== null}
      onClose={onClose}
      title={t("models.deleteTitle", { name })}
      footer={
        <>
          <Button onClick={onClose}>{t("common.cancel")}</Button>
          <Button tone="danger" disabled={!data} onClick={() => void remove()}>
            {t("models.deleteNow")}
          </Button>
        </>
      }
    >
      {error && <p className="text-danger">{error.message}</p>}
      {data && (
        <>
          <p className="text-text-2">
            {t("models.deleteText", {
              count: data.files,
              number: count(data.files, i18n.language),
              size: bytes(data.bytes, i18n.language),
            })}
          </p>
          <p className="code mt-2 break-all">{data.folder}</p>
        </>
      )}
    </Sheet>
  );
}
