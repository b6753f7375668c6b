/** Files that wait to be sent: chosen, dropped or pasted. */
import { type DragEvent, useState } from "react";
import { useTranslation } from "react-i18next";
import { notify } from "@/state/ui";
import { readTextFile, type TextFile } from "./attach";

export function useAttachments(initial: TextFile[]) {
  const { t } = useTranslation();
  const [files, setFiles] = useState<TextFile[]>(initial);
  const [dropping, setDropping] = useState(false);

  async function addFiles(added: File[]): Promise<void> {
    for (const file of added) {
      const result = await readTextFile(file);
      if (typeof result === "string") {
        notify("problem", t(`composer.${result}`, { name: file.name }));
      } else {
        setFiles((old) => [...old.filter(({ name }) => name !== result.name), result]);
      }
    }
  }

  const carriesFiles = (event: DragEvent) => event.dataTransfer.types.includes("Files");
  const dropProps = {
    onDragOver: (event: DragEvent) => {
      if (!carriesFiles(event)) return;
      event.preventDefault();
      setDropping(true);
    },
    onDragLeave: () => setDropping(false),
    onDrop: (event: DragEvent) => {
      if (!carriesFiles(event)) return;
      event.preventDefault();
      setDropping(false);
      void addFiles([...event.dataTransfer.files]);
    },
  };
  return { files, setFiles, addFiles, dropProps, dropping };
}
