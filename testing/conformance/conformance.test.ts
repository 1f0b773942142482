import { describe } from "vitest"
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

describe("durable streams", () => {
  runConformanceTests({
    baseUrl: process.env.TIDINGS_URL!,
    longPollTimeoutMs: Number(process.env.LONG_POLL_MS),
    subscriptions: true,
  })
})
