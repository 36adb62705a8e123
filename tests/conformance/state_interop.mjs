// npm @durable-streams/state at work: one command a line on stdin, one answer a line on stdout.
//
//   {"do": "materialize", "url"}           MaterializedState over all of a stream
//   {"do": "write", "url", "changes"}      events made by the helpers of createStateSchema, appended
//   {"do": "append", "url", "events"}      events as they are, appended
//   {"do": "open", "url", "types"}         a StreamDB, preloaded; it goes on following
//   {"do": "db", "txid"}                   what is in it, once it has seen a transaction (if given)
//   {"do": "transact", "changes", "txid"}  the same as write, through the stream of the StreamDB
import { createInterface } from "node:readline"
import { DurableStream, stream } from "@durable-streams/client"
import {
  MaterializedState,
  createStateSchema,
  isChangeEvent,
  isControlEvent,
} from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

// A Standard Schema that takes any object.
const anyObject = {
  "~standard": {
    version: 1,
    vendor: "penstock-tests",
    validate: (value) =>
      typeof value === "object" && value !== null && !Array.isArray(value)
        ? { value }
        : { issues: [{ message: "not an object" }] },
  },
}

function schemaFor(types) {
  return createStateSchema(
    Object.fromEntries(types.map((type) => [type, { schema: anyObject, type, primaryKey: "id" }]))
  )
}

async function materialize({ url }) {
  const state = new MaterializedState()
  const controls = []
  // json() stops at the first up-to-date answer; without `live` it would after the first chunk.
  const response = await stream({ url, offset: "-1", live: true, json: true })
  for (const event of await response.json()) {
    if (isChangeEvent(event)) state.apply(event)
    else if (isControlEvent(event)) {
      controls.push(event.headers.control)
      if (event.headers.control === "reset") state.clear()
    }
  }
  const entries = state.types.flatMap((type) =>
    [...state.getType(type)].map(([key, value]) => [type, key, value])
  )
  return { entries, controls }
}

function made(changes) {
  const schema = schemaFor([...new Set(changes.map(({ type }) => type))])
  return changes.map(({ type, operation, ...params }) => schema[type][operation](params))
}

async function write({ url, changes }) {
  const target = new DurableStream({ url, contentType: "application/json" })
  const events = made(changes)
  for (const event of events) await target.append(JSON.stringify(event))
  return { events }
}

async function append({ url, events }) {
  const target = new DurableStream({ url, contentType: "application/json" })
  for (const event of events) await target.append(JSON.stringify(event))
  return {}
}

let db
let dbTypes

async function open({ url, types }) {
  db?.close()
  dbTypes = types
  db = createStreamDB({
    streamOptions: { url, contentType: "application/json" },
    state: schemaFor(types),
  })
  await db.preload()
  return contents()
}

async function contentsAfter({ txid }) {
  if (txid !== undefined) await db.utils.awaitTxId(txid, 20000)
  return contents()
}

function contents() {
  const entries = dbTypes.flatMap((type) =>
    [...db.collections[type].entries()].map(([key, row]) => [type, key, ownFields(row)])
  )
  return { entries, offset: db.offset }
}

// Without what the package and its database add to each row.
function ownFields(row) {
  return Object.fromEntries(
    Object.entries(row).filter(([name]) => name !== "_seq" && !name.startsWith("$"))
  )
}

async function transact({ changes, txid }) {
  // Appended one by one, so only the last may carry what is waited for.
  const last = changes.length - 1
  const marked = changes.map((change, at) => (at < last ? change : { ...change, headers: { txid } }))
  for (const event of made(marked)) await db.stream.append(JSON.stringify(event))
  await db.utils.awaitTxId(txid, 20000)
  return contents()
}

const commands = { materialize, write, append, open, db: contentsAfter, transact }

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  let answer
  try {
    answer = await commands[command.do](command)
  } catch (error) {
    answer = { error: String(error?.stack ?? error) }
  }
  process.stdout.write(JSON.stringify(answer) + "\n")
}
db?.close()
