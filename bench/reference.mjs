// Starts the reference server that the benchmark compares with, and prints its URL.
//   node reference.mjs [DATA_DIR]     file store in DATA_DIR, or the memory store without one
// It ends with its standard input, so that it never outlives the benchmark.
import { DurableStreamTestServer } from "@durable-streams/server"

const dataDir = process.argv[2]
const server = new DurableStreamTestServer({
  port: 0,
  host: "127.0.0.1",
  ...(dataDir ? { dataDir } : {}),
})
console.log(`reference serving ${await server.start()}`)

const end = () => process.exit(0)
process.stdin.on("end", end).resume()
process.on("SIGTERM", end)
