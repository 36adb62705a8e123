// A reader of `__registry__` as the Test UI is one: `node registry_interop.mjs URL`, or without URL
// the reference server with its own registry.
//
// Opens the registry as a StreamDB, creates and deletes streams as the UI does, and prints the
// paths and content types that the database shows after each step as one JSON document.
import { DurableStream } from "@durable-streams/client"
import { DurableStreamTestServer, createRegistryHooks } from "@durable-streams/server"
import { createStateSchema } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

const WAIT_MS = 10_000

async function reference() {
  let hooks
  const server = new DurableStreamTestServer({
    port: 0,
    onStreamCreated: (event) => hooks.onStreamCreated(event),
    onStreamDeleted: (event) => hooks.onStreamDeleted(event),
  })
  await server.start()
  hooks = createRegistryHooks(server.store, server.url)
  return server.url
}

const base = `${process.argv[2] ?? (await reference())}/v1/stream`

// What the UI requires of an entry.
const metadata = {
  "~standard": {
    version: 1,
    vendor: "penstock-tests",
    validate: (value) =>
      typeof value?.path === "string" &&
      typeof value.contentType === "string" &&
      typeof value.createdAt === "number"
        ? { value }
        : { issues: [{ message: `not the metadata of a stream: ${JSON.stringify(value)}` }] },
  },
}

const url = `${base}/__registry__`
await DurableStream.create({ url, contentType: "application/json" }) // if it is not there
const db = createStreamDB({
  streamOptions: { url, contentType: "application/json" },
  state: createStateSchema({ streams: { schema: metadata, type: "stream", primaryKey: "path" } }),
})
await db.preload()

const rows = () => [...db.collections.streams.values()]
const shown = () => rows().map(({ path, contentType }) => [path, contentType]).sort()

async function until(condition) {
  const deadline = Date.now() + WAIT_MS
  while (!condition() && Date.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}

const has = (path) => rows().some((row) => row.path === path)
const steps = []

async function create(path, contentType) {
  await DurableStream.create({ url: `${base}/${path}`, contentType })
  await until(() => has(path))
  steps.push(shown())
}

async function remove(path) {
  await new DurableStream({ url: `${base}/${path}` }).delete()
  await until(() => !has(path))
  steps.push(shown())
}

await create("__presence__", "application/json")
await create("chat", "text/plain")
await create("files%20of/a", "application/octet-stream")
await remove("chat")
await create("chat", "application/json")
const ages = rows().map((row) => Date.now() - row.createdAt)
process.stdout.write(JSON.stringify({ steps, ages }) + "\n")
db.close()
process.exit(0)
