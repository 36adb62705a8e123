// Live reads: server-sent events over fetch, so that the token goes along, and on from the last offset whatever happens.

import { ApiError, isAbort, send, sleep, streamUrl, Unreachable } from "./api.js";

const WAIT_MS_MIN = 500;
const WAIT_MS_MAX = 15_000;
const SILENCE_MS = 60_000; // the server sends a comment every 15 s by default

/**
 * Follow a stream until the signal aborts or the stream ends. `start` is where: `{offset}`, `{tail}` or `{at}`.
 *
 * `onBatch({data, before, offset, encoding})` gets the text of each data event, and the offsets before (null if it is
 * not known) and after it; while the promise that it returns is pending nothing more is read. `onState(state, detail)` hears of `connecting`, `live` (up to date),
 * `catching-up`, `waiting` (with the seconds until the next try), `closed` and `ended` (with the error).
 */
export async function follow(
  path,
  { start = { offset: "now" }, query = {}, signal, onBatch, onState = () => {} },
) {
  let waitMs = WAIT_MS_MIN;
  let offset = isOffset(start.offset) ? start.offset : null;
  for (;;) {
    try {
      onState("connecting");
      const address = streamUrl(path, { ...query, ...(offset === null ? start : { offset }), live: "sse" });
      const response = await send(address, { signal, headers: { Accept: "text/event-stream" } });
      const encoding = response.headers.get("stream-sse-data-encoding");
      offset ??= response.headers.get("stream-start-offset");
      for await (const event of eventsOf(response, signal)) {
        waitMs = WAIT_MS_MIN;
        if (event.type === "control") {
          const control = JSON.parse(event.data);
          offset = control.streamNextOffset;
          if (control.streamClosed) {
            onState("closed");
            return;
          }
          onState(control.upToDate ? "live" : "catching-up");
        } else if (event.type === "data") {
          const before = offset;
          if (event.id) offset = event.id;
          await onBatch({ data: event.data, before, offset, encoding });
        }
      }
      // The server ends a response after a while; a new one goes on.
      await sleep(50, signal);
    } catch (error) {
      if (isAbort(error) || signal?.aborted) return;
      if (!isTemporary(error)) {
        onState("ended", error);
        return;
      }
      const seconds = (waitMs * (0.5 + Math.random() / 2)) / 1000;
      onState("waiting", { seconds, error });
      try {
        await sleep(seconds * 1000, signal);
      } catch {
        return;
      }
      waitMs = Math.min(waitMs * 2, WAIT_MS_MAX);
    }
  }
}

const isOffset = (text) => /^\d{16}_\d{16}$/.test(text ?? "");

/**
 * Return messages with the offset of each: `before` is that of the first one, `after` that behind the last one. The
 * position in an offset counts the bytes of messages, each with the comma and line feed that follow it. Where that does
 * not add up (a fork goes on from its source, or messages were left out), only the first has an offset.
 */
export function withOffsets(texts, before, after) {
  if (!isOffset(before) || !isOffset(after)) return texts.map((text) => ({ text, offset: null }));
  const [generation, first] = before.split("_");
  let position = Number(first);
  const messages = texts.map((text) => {
    const offset = `${generation}_${String(position).padStart(16, "0")}`;
    position += byteLength(text) + 2;
    return { text, offset };
  });
  if (`${generation}_${String(position).padStart(16, "0")}` === after) return messages;
  return messages.map((message, at) => (at === 0 ? message : { ...message, offset: null }));
}

const encoder = new TextEncoder();
export const byteLength = (text) => encoder.encode(text).length;

function isTemporary(error) {
  if (error instanceof Unreachable || error instanceof TypeError) return true;
  return error instanceof ApiError && (error.status >= 500 || error.status === 429 || error.status === 408);
}

/** Yield the events of a response as `{type, data, id}`. */
export async function* eventsOf(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = { type: "message", data: null, id: "" };
  try {
    for (;;) {
      const { done, value } = await withinSilence(reader.read(), signal);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (event.data !== null) yield { ...event, data: event.data.join("\n") };
          event = { type: "message", data: null, id: "" };
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue;
        const name = colon < 0 ? line : line.slice(0, colon);
        let text = colon < 0 ? "" : line.slice(colon + 1);
        if (text.startsWith(" ")) text = text.slice(1);
        if (name === "data") (event.data ??= []).push(text);
        else if (name === "event") event.type = text;
        else if (name === "id") event.id = text;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** A connection that says nothing at all, not even a comment, has broken without a word. */
async function withinSilence(promise, signal) {
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new TypeError("The connection is silent.")), SILENCE_MS);
  });
  try {
    return await Promise.race([promise, silence]);
  } catch (error) {
    // A connection that breaks while it is read.
    throw isAbort(error) || signal?.aborted ? error : new TypeError(error.message);
  } finally {
    clearTimeout(timer);
  }
}

/** Return the messages of a JSON read or data event, each as its own text: the server sends one a line. */
export function messagesOf(text) {
  const inner = text.replace(/^\[\n?/, "").replace(/\n?\]$/, "");
  return inner === "" ? [] : inner.split(",\n");
}
