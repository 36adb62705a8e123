import { defineConfig } from "vitest/config"

export default defineConfig({
  // A folder for each run: several run side by side.
  cacheDir: process.env.CONFORMANCE_CACHE,
  test: {
    include: ["suite.test.ts"],
    testTimeout: 30_000, // four suites share the machine
  },
})
