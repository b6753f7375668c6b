// How much the browser loads before the page is there: what index.html names, compressed. Fails
// above the budget. Chunks that come later (formulas, colours of code, other pages) do not count.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const BUDGET = 300_000;
const dist = join(import.meta.dirname, "..", "dist");
const page = readFileSync(join(dist, "index.html"), "utf8");
const names = [...page.matchAll(/(?:src|href)="\/app\/([^"]+)"/g)].map(([, name]) => name);
const sizes = [...new Set(names)].map((name) => [
  name,
  gzipSync(readFileSync(join(dist, name))).length,
]);
const total = sizes.reduce((sum, [, size]) => sum + size, gzipSync(page).length);
if (sizes.length < 2) throw new Error("size: index.html names no files; was it built?");
process.stdout.write(`size: first load ${total} bytes compressed, budget ${BUDGET}\n`);
if (total > BUDGET) {
  for (const [name, size] of sizes) process.stderr.write(`  ${size} ${name}\n`);
  process.exit(1);
}
