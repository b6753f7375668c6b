/// <reference types="vitest/config" />
/// <reference types="node" />
import { fileURLToPath } from "node:url";
import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// `npm run dev` shows the page of the sources; the API is that of a server that runs already.
const server = process.env["COLIBRI_URL"] ?? "http://127.0.0.1:8000";
const routes = ["/v1", "/api", "/health", "/experts", "/profile"];

export default defineConfig({
  base: "/app/",
  plugins: [react(), tailwindcss()],
  resolve: { alias: { "@": fileURLToPath(new URL("./src", import.meta.url)) } },
  build: {
    target: "es2022",
    // Inlined files would need `data:` in the page's security policy for scripts and styles.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    proxy: Object.fromEntries(routes.map((route) => [route, { target: server, ws: true }])),
  },
  test: {
    restoreMocks: true,
    testTimeout: 30_000,
    // Files share their workers: starting one for each takes longer than all tests.
    isolate: false,
    projects: [
      {
        extends: true,
        test: { name: "plain", environment: "node", include: ["src/**/*.test.ts"] },
      },
      {
        extends: true,
        test: {
          name: "page",
          environment: "jsdom",
          include: ["src/**/*.test.tsx"],
          setupFiles: ["src/testing.ts"],
        },
      },
    ],
  },
});
