/** Keys to press, as they stand on this machine's keyboard. */
const MAC = /mac|iphone|ipad/i.test(navigator.platform);

export function keyNames(keys: string): string {
  return keys
    .split("+")
    .map((key) => (key === "Mod" ? (MAC ? "⌘" : "Ctrl") : key))
    .join(MAC ? "" : "+");
}

export function Kbd({ keys }: { keys: string }) {
  return (
    <kbd className="rounded-[4px] border border-line-strong bg-surface-2 px-1.5 py-0.5 font-mono text-[0.6875rem] text-text-2">
      {keyNames(keys)}
    </kbd>
  );
}
