// The official conformance suite, pointed at one server.
// The URL is not passed as BASE_URL: Vite overwrites a variable of that name.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.CONFORMANCE_URL
if (!baseUrl) throw new Error("CONFORMANCE_URL is not set: run this through pytest")

// The suite uses longPollTimeoutMs only as the time limit of its own long-poll tests.
runConformanceTests({ baseUrl, longPollTimeoutMs: 20_000, subscriptions: true })
