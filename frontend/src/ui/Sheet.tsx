/** Windows over the page: in the middle, or from a side. Esc and a click beside them close. */
import { clsx } from "clsx";
import { X } from "lucide-react";
import { Dialog } from "radix-ui";
import type { ReactNode } from "react";
import { useTranslation } from "react-i18next";

interface SheetProps {
  open: boolean;
  onClose: () => void;
  title: string;
  /** What it is for, in a sentence under the title. */
  description?: string;
  side?: "middle" | "left" | "right";
  /** Wider than usual. */
  wide?: boolean;
  footer?: ReactNode;
  children: ReactNode;
}

const PLACES = {
  middle:
    "left-1/2 top-[12vh] max-h-[76vh] w-[min(34rem,calc(100vw-1.5rem))] -translate-x-1/2 rounded-md",
  left: "inset-y-0 left-0 w-[min(19rem,calc(100vw-3rem))]",
  right: "inset-y-0 right-0 w-[min(25rem,calc(100vw-2rem))]",
};

export function Sheet(props: SheetProps) {
  const { open, onClose, title, description, side = "middle", wide, footer, children } = props;
  const { t } = useTranslation();
  return (
    <Dialog.Root open={open} onOpenChange={(next) => !next && onClose()}>
      <Dialog.Portal>
        <Dialog.Overlay className="fixed inset-0 z-40 bg-[var(--veil)]" />
        <Dialog.Content
          {...(description ? {} : { "aria-describedby": undefined })}
          className={clsx(
            "fixed z-40 flex flex-col border border-line bg-surface-1 shadow-float",
            PLACES[side],
            wide && side === "middle" && "w-[min(46rem,calc(100vw-1.5rem))]",
          )}
        >
          <header className="flex items-start gap-2 border-line border-b py-2.5 pr-2 pl-4">
            <div className="min-w-0 grow py-1">
              <Dialog.Title className="font-semibold text-[0.95rem]">{title}</Dialog.Title>
              {description && (
                <Dialog.Description className="mt-0.5 text-text-2 text-xs">
                  {description}
                </Dialog.Description>
              )}
            </div>
            <Dialog.Close asChild>
              {/* Without a tip: it would open with the window, and take the first Esc. */}
              <button
                type="button"
                aria-label={t("common.close")}
                className="inline-flex size-7 shrink-0 items-center justify-center rounded-sm text-text-2 hover:bg-surface-3 hover:text-text-1"
              >
                <X size={15} aria-hidden="true" />
              </button>
            </Dialog.Close>
          </header>
          <div className="min-h-0 grow overflow-y-auto p-4">{children}</div>
          {footer && (
            <footer className="flex flex-wrap justify-end gap-2 border-line border-t px-4 py-3">
              {footer}
            </footer>
          )}
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
