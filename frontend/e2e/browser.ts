/** The system's Chromium, as the tests drive it: no sandbox for containers, no calls to anyone. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type BrowserContext, chromium, type Page } from "playwright-core";

const FLAGS = [
  "--no-sandbox",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-dev-shm-usage",
];

/**
 * Without a graphics card three dimensions are drawn by the processor, if they are to be. Workers do
 * not heed that the page may not draw so; nobody is left to draw for them.
 */
const FLAT = ["--disable-gpu", "--disable-3d-apis", "--disable-software-rasterizer"];
const DEEP = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"];

export interface Looks {
  width?: number;
  height?: number;
  theme?: "light" | "dark";
  language?: string;
  /** The person has asked for no motion. */
  still?: boolean;
  /** The browser can draw in three dimensions. */
  webgl?: boolean;
  touch?: boolean;
}

export interface Browser {
  context: BrowserContext;
  page: Page;
  /** What the page reported as an error, to be empty at the end. */
  problems: string[];
  close(): Promise<void>;
}

/** A browser of its own, with nothing stored, on one empty page. */
export async function openBrowser(looks: Looks = {}): Promise<Browser> {
  const folder = await mkdtemp(join(tmpdir(), "colibri-e2e-"));
  const context = await chromium.launchPersistentContext(folder, {
    executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium",
    args: [...FLAGS, ...(looks.webgl ? DEEP : FLAT)],
    viewport: { width: looks.width ?? 1440, height: looks.height ?? 900 },
    colorScheme: looks.theme ?? "light",
    locale: looks.language ?? "en-US",
    reducedMotion: looks.still ? "reduce" : "no-preference",
    hasTouch: looks.touch ?? false,
    permissions: ["clipboard-read", "clipboard-write"],
  });
  // A busy machine may take its time.
  context.setDefaultTimeout(60_000);
  const page = context.pages()[0] ?? (await context.newPage());
  const problems: string[] = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error") problems.push(`${message.text()} ${message.location().url}`);
  });
  return {
    context,
    page,
    problems,
    async close() {
      await context.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}
