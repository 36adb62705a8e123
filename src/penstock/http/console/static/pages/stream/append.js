// The append box: JSON is checked before it is sent, and a repeated attempt is recognised by the server.

import { fill, h } from "../../lib/dom.js";
import { send, sleep, streamUrl, Unreachable } from "../../lib/api.js";
import { count } from "../../lib/format.js";
import { may } from "../../lib/session.js";
import { errorView, notAllowed, toast } from "../../lib/views.js";

const TRIES = 3;
const WAIT_MS = 800;

const newId = () =>
  `console-${crypto.getRandomValues(new Uint32Array(2)).reduce((text, each) => text + each.toString(36), "")}`;

/** Return the element of the box for a stream; `onAppended(offset)` is called after each append. */
export function appendBox({ stream, signal, onAppended }) {
  if (!may("append", stream.path)) return notAllowed("append to this stream", `append:${stream.path}`);
  if (stream.isClosed) return h("p.dim", "The stream is closed: nothing can be appended any more.");
  let producer = { id: newId(), seq: 0 };
  let uncertain = null; // the text whose fate is not known
  const text = h("textarea", {
    rows: 8,
    spellcheck: "false",
    "aria-label": "What to append",
    placeholder: stream.isJson ? '{"id": 1}' : "Text",
  });
  const hint = h("p.dim", { role: "status" });
  const problem = h("div");
  const button = h("button.primary", { type: "submit" }, "Append");
  const check = () => {
    const { error, messages } = checked(text.value, stream.isJson);
    fill(
      hint,
      text.value.trim() === ""
        ? ""
        : error
          ? `No valid JSON: ${error}`
          : stream.isJson
            ? `${count(messages, "message")}.${messages === 1 ? "" : " Each element of an array is a message of its own."}`
            : "",
    );
    hint.classList.toggle("bad", Boolean(error) && text.value.trim() !== "");
    return error;
  };
  text.addEventListener("input", check);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  const form = h(
    "form.card",
    h("label.field", h("span", `Append to the stream, as ${stream.contentType}`), text),
    hint,
    problem,
    h("div.actions", button, h("span.dim", "Ctrl+Enter appends")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    fill(problem);
    const error = check();
    if (error) {
      fill(problem, errorView(new Error(`This is no valid JSON: ${error} Nothing was sent.`)));
      return text.focus();
    }
    // Another text must not be taken for a repetition of one that may have arrived.
    if (uncertain !== null && uncertain !== text.value) producer = { id: newId(), seq: 0 };
    button.disabled = true;
    try {
      const response = await attempt(stream, text.value, producer, signal, (tries) =>
        fill(hint, `No answer. Trying again (${tries} of ${TRIES}) …`),
      );
      uncertain = null;
      producer.seq += 1;
      toast("Appended.");
      text.value = "";
      fill(hint);
      onAppended(response.headers.get("stream-next-offset"));
    } catch (failure) {
      if (signal.aborted) return;
      uncertain = failure instanceof Unreachable ? text.value : null;
      fill(
        problem,
        uncertain === null
          ? errorView(failure)
          : errorView(
              new Error(
                "The server did not answer, so it is not known whether this was appended. Append it again: the server recognises a repetition, and appends it once.",
              ),
            ),
      );
    } finally {
      button.disabled = false;
    }
  });
  return form;
}

async function attempt(stream, body, producer, signal, onRetry) {
  const headers = {
    "Content-Type": stream.contentType,
    "Producer-Id": producer.id,
    "Producer-Epoch": "0",
    "Producer-Seq": String(producer.seq),
  };
  for (let tries = 1; ; tries += 1) {
    try {
      return await send(streamUrl(stream.path), { method: "POST", headers, body, signal });
    } catch (error) {
      const isTemporary = error instanceof Unreachable || error.status === 503 || error.status === 429;
      if (!isTemporary || tries > TRIES) throw error;
      onRetry(tries);
      await sleep(WAIT_MS * 2 ** (tries - 1), signal);
    }
  }
}

/** Return what is wrong with a body, and how many messages it has. */
export function checked(text, isJson) {
  if (text.trim() === "") return { error: "There is nothing to append.", messages: 0 };
  if (!isJson) return { error: null, messages: 1 };
  try {
    const value = JSON.parse(text);
    if (Array.isArray(value) && value.length === 0)
      return { error: "An empty array has no messages.", messages: 0 };
    return { error: null, messages: Array.isArray(value) ? value.length : 1 };
  } catch (error) {
    return { error: error.message.endsWith(".") ? error.message : `${error.message}.`, messages: 0 };
  }
}
