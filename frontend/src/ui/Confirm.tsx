/** The question before something that cannot be undone. */
import { useTranslation } from "react-i18next";
import { Button } from "./Button";
import { Sheet } from "./Sheet";

interface ConfirmProps {
  open: boolean;
  title: string;
  text: string;
  action: string;
  onConfirm: () => void;
  onClose: () => void;
}

export function Confirm({ open, title, text, action, onConfirm, onClose }: ConfirmProps) {
  const { t } = useTranslation();
  return (
    <Sheet
      open={open}
      onClose={onClose}
      title={title}
      footer={
        <>
          <Button onClick={onClose}>{t("common.cancel")}</Button>
          <Button
            tone="danger"
            onClick={() => {
              onConfirm();
              onClose();
            }}
          >
            {action}
          </Button>
        </>
      }
    >
      <p className="text-text-2">{text}</p>
    </Sheet>
  );
}
