// The reference server from npm, with the fault injection that the upstream client suite uses.
//
// Prints its address and that of a second, small server that tells when a reader is waiting for
// news of a stream: GET /waiting?path=... is answered then. Ends with its standard input.

import { createServer } from "node:http"
import { DurableStreamTestServer } from "@durable-streams/server"

const server = new DurableStreamTestServer({
  port: 0,
  longPollTimeout: Number(process.argv[2] ?? 500),
})
await server.start()

const control = createServer((request, response) => {
  const path = new URL(request.url, "http://localhost").searchParams.get("path")
  const look = () => {
    if (server.store.pendingLongPolls.some((pending) => pending.path === path)) {
      response.writeHead(204).end()
    } else if (!response.closed) {
      setTimeout(look, 2)
    }
  }
  look()
})
control.listen(0, "127.0.0.1", () => {
  const controlUrl = `http://127.0.0.1:${control.address().port}`
  process.stdout.write(JSON.stringify({ url: server.url, controlUrl }) + "\n")
})
process.stdin.on("end", () => process.exit(0))
process.stdin.resume()
