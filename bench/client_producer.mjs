// The producer of the npm client, measured: one round per line of standard input.
//   node client_producer.mjs URL     then lines {"stream": "...", "id": "...", "count": N}
// Answers with one line {"seconds": S} each: from the first append to the end of flush().
import { createInterface } from "node:readline"
import { DurableStream, IdempotentProducer } from "@durable-streams/client"

const url = process.argv[2]

async function round({ stream: name, id, count, pace }) {
  const stream = new DurableStream({ url: `${url}/v1/stream/${name}`, contentType: "application/json" })
  const producer = new IdempotentProducer(stream, id)
  const started = performance.now()
  for (let n = 0; n < count; n++) {
    producer.append(JSON.stringify({ n, name: "abcdefghijkl", ok: true }))
    // A loop that never lets go would queue everything and send nothing: as our own, it lets
    // the sending go on now and then.
    if (n % pace === pace - 1) await new Promise(setImmediate)
  }
  await producer.flush()
  const seconds = (performance.now() - started) / 1000
  await producer.detach()
  return seconds
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify({ seconds: await round(JSON.parse(line)) }))
}
