// npm @durable-streams/y-durable-streams at work over a server: `node yjs_interop.mjs URL MODE`.
//
// Runs its Yjs server, with compaction on, over the streams of URL. One provider writes a document;
// others join at each stage of its compaction. Prints, as one JSON document, the text that each of
// them ends up with and what it reported as errors. MODE is the live mode: sse or long-poll.
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import { Awareness } from "y-protocols/awareness"
import * as Y from "yjs"

const [url, liveMode] = process.argv.slice(2)
const THRESHOLD = 1000 // bytes of updates after which the Yjs server makes a snapshot
const WAIT_MS = 10_000

console.log = console.error // the Yjs server reports each snapshot; stdout is for the result

async function serve() {
  const server = new YjsServer({ dsServerUrl: url, compactionThreshold: THRESHOLD, port: 0 })
  return `${await server.start()}/v1/yjs/interop`
}

const baseUrl = await serve()
const docId = `document-${liveMode}`
const errors = []

async function until(condition, waitMs = WAIT_MS) {
  const deadline = Date.now() + waitMs
  while (!(await condition())) {
    if (Date.now() > deadline) return false
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
  return true
}

async function join(name, at = baseUrl) {
  const doc = new Y.Doc()
  const awareness = new Awareness(doc)
  const provider = new YjsProvider({ doc, awareness, baseUrl: at, docId, liveMode })
  provider.on("error", (error) => errors.push(`${name}: ${error.message}`))
  await until(() => provider.synced)
  return { name, provider, read: () => doc.getText("text").toString(), doc, awareness }
}

async function write(member, text) {
  member.doc.getText("text").insert(member.read().length, text)
  await member.provider.flush()
}

async function snapshotOffset() {
  const answer = await fetch(`${baseUrl}/docs/${docId}?offset=snapshot`, { redirect: "manual" })
  const offset = new URL(answer.headers.get("location"), baseUrl).searchParams.get("offset")
  return offset.endsWith("_snapshot") ? offset : null
}

async function compacted(previous) {
  let offset = null
  await until(async () => (offset = await snapshotOffset()) !== null && offset !== previous)
  return offset
}

const stages = []

async function stage(name, members, expected) {
  await until(() => members.every((member) => member.read() === expected))
  stages.push({ name, texts: members.map((member) => member.read()), expected })
}

const writer = await join("writer")
const members = [writer]
let text = ""

async function add(more) {
  text += more
  await write(writer, more)
}

await add("a".repeat(THRESHOLD))
const first = await compacted(null)
members.push(await join("at the snapshot"))
await stage("joined when the snapshot is all there is", members, text)

await add("b")
await stage("an update after that", members, text)

await add("c".repeat(50))
members.push(await join("after the snapshot"))
await stage("joined when updates follow the snapshot", members, text)

await add("d".repeat(THRESHOLD))
const second = await compacted(first)
await add("e".repeat(50))
members.push(await join("after the second snapshot"))
await add("f")
await stage("joined after a snapshot that was made from the one before", members, text)

const later = members.at(-1)
text += "g"
await write(later, "g")
await stage("a late joiner writes", members, text)

// Another Yjs server knows of the snapshot only from the index that the first one has written.
members.push(await join("of another Yjs server", await serve()))
await stage("joined through another Yjs server", members, text)

// Presence is not stored: who has not subscribed to it yet gets the next announcement.
const seen = () => members.map(({ awareness }) => awareness.getStates().get(writer.doc.clientID))
const isSeen = () => seen().every((state) => state?.name === "writer")
const announced = async () => {
  writer.awareness.setLocalState({ name: "writer" })
  return until(isSeen, 200)
}
await until(announced)
const presence = seen()

for (const { provider } of members) provider.destroy()
const removed = await fetch(`${baseUrl}/docs/${docId}`, { method: "DELETE" })
const result = { stages, errors, snapshots: [first, second], presence, removed: removed.status }
process.stdout.write(JSON.stringify(result) + "\n")
process.exit(0)
