/** A menu under a button. */
import { clsx } from "clsx";
import type { LucideIcon } from "lucide-react";
import { DropdownMenu } from "radix-ui";
import type { ReactNode } from "react";

export interface MenuItem {
  label: string;
  icon?: LucideIcon;
  /** A second line. */
  note?: string;
  danger?: boolean;
  disabled?: boolean;
  checked?: boolean;
  onSelect: () => void;
}

interface MenuProps {
  trigger: ReactNode;
  /** Groups, divided by lines. */
  groups: MenuItem[][];
  align?: "start" | "end";
}

export function Menu({ trigger, groups, align = "end" }: MenuProps) {
  const filled = groups.filter((group) => group.length > 0);
  return (
    <DropdownMenu.Root modal={false}>
      <DropdownMenu.Trigger asChild>{trigger}</DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content
          align={align}
          sideOffset={4}
          collisionPadding={8}
          className="rise z-50 max-h-[min(24rem,var(--radix-dropdown-menu-content-available-height))] min-w-44 max-w-80 overflow-y-auto rounded-sm border border-line bg-surface-1 p-1 shadow-float"
        >
          {filled.map((group, at) => (
            <DropdownMenu.Group key={group[0]?.label}>
              {at > 0 && <DropdownMenu.Separator className="my-1 h-px bg-line" />}
              {group.map((item) => (
                <Item key={item.label} {...item} />
              ))}
            </DropdownMenu.Group>
          ))}
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

function Item({ label, icon: Icon, note, danger, disabled, checked, onSelect }: MenuItem) {
  return (
    <DropdownMenu.Item
      {...(disabled && { disabled })}
      onSelect={onSelect}
      className={clsx(
        "flex cursor-pointer select-none items-center gap-2 rounded-sm px-2 py-1.5 outline-none data-[disabled]:cursor-default data-[disabled]:opacity-50 data-[highlighted]:bg-surface-2",
        danger ? "text-danger" : "text-text-1",
        checked && "font-medium text-accent",
      )}
    >
      {Icon && <Icon size={15} aria-hidden="true" className="shrink-0" />}
      <span className="min-w-0 grow">
        <span className="block truncate">{label}</span>
        {note && <span className="block truncate text-text-3 text-xs">{note}</span>}
      </span>
    </DropdownMenu.Item>
  );
}
