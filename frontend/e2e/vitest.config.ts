import { defineConfig } from "vitest/config";

// One browser and one model at a time; a busy machine may take its time.
export default defineConfig({
  root: import.meta.dirname,
  test: {
    include: ["*.e2e.ts"],
    fileParallelism: false,
    testTimeout: 240_000,
    hookTimeout: 240_000,
    expect: { poll: { timeout: 20_000 } },
  },
});
