/** How many experts a model has, in the same words everywhere. */
import type { TFunction } from "i18next";
import { count } from "@/core/format";

/** `draft` of all `experts` are in the draft (MTP) layer. */
export function expertCount(
  t: TFunction,
  language: string,
  { experts, draft_experts: draft }: { experts: number; draft_experts: number },
): string {
  const number = count(experts, language);
  return draft > 0
    ? t("experts.withDraft", { number, draft: count(draft, language) })
    : t("experts.all", { number });
}
