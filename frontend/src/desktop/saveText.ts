/** Saving a text: through the dialog of the app's window, or as the browser does it. */
import i18next from "i18next";
import { notify } from "@/state/ui";
import { saveFile } from "@/ui/files";
import { saveInWindow } from "./shell";

export async function saveText(name: string, text: string, type: string): Promise<void> {
  const saved = await saveInWindow(name, text);
  if (saved === false) saveFile(name, text, type);
  else if (saved.problem) notify("problem", i18next.t("desktop.notSaved", { ...saved }));
  else if (saved.path) notify("info", i18next.t("desktop.saved", { ...saved }));
}
