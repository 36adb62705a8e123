// MaterializedState of the npm package, measured: one round per line of standard input.
//   node state_apply.mjs FILE     FILE has one JSON array of events a line
// Answers with one line {"seconds": S, "keys": N} each: JSON.parse and applyBatch of all arrays.
import { readFileSync } from "node:fs"
import { createInterface } from "node:readline"
import { MaterializedState } from "@durable-streams/state"

const bytes = readFileSync(process.argv[2])
const arrays = []
for (let start = 0; start < bytes.length; ) {
  const end = bytes.indexOf(10, start)
  arrays.push(bytes.subarray(start, end))
  start = end + 1
}

for await (const _ of createInterface({ input: process.stdin })) {
  const state = new MaterializedState()
  const started = performance.now()
  for (const array of arrays) {
    state.applyBatch(JSON.parse(array.toString()))
  }
  const seconds = (performance.now() - started) / 1000
  const keys = state.types.reduce((sum, type) => sum + state.getType(type).size, 0)
  console.log(JSON.stringify({ seconds, keys }))
}
