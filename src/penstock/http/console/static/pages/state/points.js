// The points of a stream that a slider stops at: after each message, or at so many places where there are more.

import { send, streamUrl, url } from "../../lib/api.js";
import { messagesOf } from "../../lib/live.js";

const STOPS_MAX = 500;
const READ_BYTES_MAX = 2 * 1024 * 1024; // a stream up to this size has a stop after each message
const ENCODER = new TextEncoder();

const positionOf = (offset) => Number(offset.split("_")[1]);
const offsetAt = (offset, position) => `${offset.split("_")[0]}_${String(position).padStart(16, "0")}`;

/** Return `{stops, isExact}`: the offsets from the earliest to the tail, each with the number of messages before it. */
export async function loadStops(path, signal) {
  const response = await send(streamUrl(path, { offset: "-1", splits: STOPS_MAX }), { signal });
  const { offsets, ordinals } = await response.json();
  // Only streams of messages have ordinals; the answer to the other request says what is missing.
  if (!ordinals) await send(url(`v1/state/${path}`), { signal });
  const bytes = positionOf(offsets.at(-1)) - positionOf(offsets[0]);
  const messages = ordinals.at(-1) - ordinals[0];
  if (bytes > READ_BYTES_MAX || messages > STOPS_MAX * 4)
    return { stops: offsets.map((offset, at) => ({ offset, ordinal: ordinals[at] })), isExact: false };
  const stops = [{ offset: offsets[0], ordinal: ordinals[0] }];
  while (positionOf(stops.at(-1).offset) < positionOf(offsets.at(-1))) {
    const more = await eventsAfter(path, stops.at(-1), { until: offsets.at(-1) }, signal);
    if (more.length === 0) break;
    stops.push(...more);
  }
  return { stops, isExact: true };
}

/** Return the events after a stop: each with the offset after it, its ordinal, and its text. */
export async function eventsAfter(path, stop, bounds, signal) {
  const response = await send(streamUrl(path, { offset: stop.offset, ...bounds }), { signal });
  const base = response.headers.get("stream-next-offset");
  let position = positionOf(stop.offset);
  let ordinal = stop.ordinal;
  return messagesOf(await response.text()).map((text) => {
    // Stored with a comma and a line feed after it.
    position += ENCODER.encode(text).length + 2;
    ordinal += 1;
    return { offset: offsetAt(base, position), ordinal, text };
  });
}

/** Return the stop that is one message before another; null at the start. */
export async function stopBefore(path, stops, stop, signal) {
  const start = stops.findLast((each) => each.ordinal < stop.ordinal);
  if (!start) return null;
  let events = [start];
  // A response ends at the server's chunk size; the next one goes on.
  while (events.at(-1).ordinal < stop.ordinal - 1) {
    const more = await eventsAfter(path, events.at(-1), { until: stop.offset }, signal);
    if (more.length === 0) break;
    events = [...events.slice(-1), ...more];
  }
  return events.findLast((each) => each.ordinal < stop.ordinal) ?? start;
}
