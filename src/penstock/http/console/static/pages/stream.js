// A stream: what it is, its messages, and what can be done with it.

import { fill, h, released } from "../lib/dom.js";
import { get, isAbort, poll, send, streamUrl, url, write } from "../lib/api.js";
import { ago, bytes, canonicalPath, count, duration, pathText, time, whole } from "../lib/format.js";
import { link, navigate, page } from "../lib/pages.js";
import { may, maySomewhere } from "../lib/session.js";
import { ask, field } from "../lib/dialog.js";
import { badge, copyButton, emptyView, errorView, facts, tabs, toast } from "../lib/views.js";
import { appendBox } from "./stream/append.js";
import { codePanel } from "./stream/code.js";
import { messages } from "./stream/messages.js";
import { forksPanel, producersPanel, subscriptionsPanel } from "./stream/related.js";

const POLL_MS = 5_000;

page({ name: "stream", title: "Stream", render });

async function render({ root, path, query, signal, title }) {
  const name = pathText(path);
  title(name);
  const badges = h("span");
  const actions = h("div.actions");
  const about = h("div.card");
  const content = h("div");
  root.append(
    h("nav.crumbs", { "aria-label": "Path" }, crumbs(path)),
    h("div.page-head", h("h1", name), copyButton(path, "Copy path"), h("span.grow"), badges, actions),
    about,
    content,
  );
  let stream;
  try {
    stream = await describe(path, signal);
    stream.retention = await get(`v1/stream/${path}/__ds/retention`, {}, { signal });
  } catch (error) {
    if (error.status !== 404 && error.status !== 410) throw error;
    about.remove();
    fill(
      content,
      emptyView(
        "There is no such stream",
        error.message,
        h("a.button", { href: link("streams") }, "Streams"),
      ),
    );
    return;
  }
  const draw = () => {
    fill(badges, stream.isClosed ? badge("closed") : badge("open", "good"));
    fill(about, factsOf(stream));
  };
  const refresh = async () => {
    stream = Object.assign(stream, await describe(path, signal));
    await released();
    draw();
  };
  draw();
  fill(actions, buttons(stream, signal, refresh));
  const panels = [
    ["messages", "Messages", (panel) => messages({ root: panel, stream, query, signal })],
    ["append", "Append", (panel) => panel.append(appendBox({ stream, signal, onAppended: refresh }))],
    ["producers", "Producers", (panel) => producersPanel(panel, stream, signal)],
    ["forks", "Forks", (panel) => forksPanel(panel, stream, signal)],
    ["subscriptions", "Subscriptions", (panel) => subscriptionsPanel(panel, stream, signal)],
    ["code", "Code", (panel) => panel.append(codePanel(stream))],
  ];
  fill(content, tabs("Parts of the stream", panels));
  await poll(POLL_MS, signal, async () => {
    try {
      await refresh();
    } catch (error) {
      if (isAbort(error)) throw error;
      if (error.status === 404 || error.status === 410) {
        fill(about, errorView(error));
        fill(actions);
        throw new DOMException("gone", "AbortError");
      }
      // The server is away: the messages say so.
    }
  });
}

/** Return what is known of a stream: its headers, and its entry in the listing if it may be listed. */
async function describe(path, signal) {
  const [head, entry] = await Promise.all([
    send(streamUrl(path), { method: "HEAD", signal }).catch((error) => explain(error, path, signal)),
    may("list", path)
      ? get("v1/streams", { prefix: path, limit: 1 }, { signal }).then((listing) =>
          listing.streams.find((each) => each.path === path),
        )
      : null,
  ]);
  const contentType = head.headers.get("content-type") ?? "application/octet-stream";
  const media = contentType.split(";")[0].trim().toLowerCase();
  return {
    path,
    contentType,
    isJson: media === "application/json",
    isText: media.startsWith("text/"),
    isClosed: head.headers.get("stream-closed") === "true",
    successor: head.headers.get("stream-successor"),
    tail: head.headers.get("stream-next-offset"),
    earliest: head.headers.get("stream-earliest-offset"),
    ttl: head.headers.get("stream-ttl"),
    expiresAt: head.headers.get("stream-expires-at"),
    entry: entry ?? null,
  };
}

/** The answer to HEAD has no body that says what is wrong. */
async function explain(error, path, signal) {
  if (error.status === undefined || error.status === 401) throw error;
  await send(streamUrl(path, { offset: "now" }), { signal });
  throw error;
}

function factsOf(stream) {
  const { entry } = stream;
  const trimmed = entry?.trimmed ? `, ${whole(entry.trimmed)} trimmed` : "";
  return facts([
    ["Content type", stream.contentType],
    ["Messages", entry && (stream.isJson ? whole(entry.messages) + trimmed : null)],
    ["Size", entry && bytes(entry.bytes)],
    ["Created", entry && h("time", { datetime: entry.created_at }, time(entry.created_at))],
    [
      "Last write",
      entry &&
        h("time", { datetime: entry.touched_at, title: time(entry.touched_at) }, ago(entry.touched_at)),
    ],
    ["Retention", retentionText(stream.retention)],
    ["Time to live", stream.ttl && duration(Number(stream.ttl))],
    ["Expires", stream.expiresAt && time(stream.expiresAt)],
    [
      "Forked from",
      entry?.forked_from && h("a", { href: link("stream", entry.forked_from) }, pathText(entry.forked_from)),
    ],
    [
      "Successor",
      stream.successor &&
        h(
          "a",
          { href: link("stream", stream.successor.replace(/^.*\/v1\/stream\//, "")) },
          pathText(stream.successor.replace(/^.*\/v1\/stream\//, "")),
        ),
    ],
    ["Earliest offset", h("code", stream.earliest), "long"],
    ["Tail offset", h("code", stream.tail), "long"],
  ]);
}

function retentionText({ age, bytes: size, compact }) {
  const parts = [
    age !== null && duration(age),
    size !== null && bytes(size),
    compact !== null && `compacted at ${whole(compact)} times its state`,
  ];
  return parts.filter(Boolean).join(", ") || null;
}

function crumbs(path) {
  const segments = path.split("/").slice(0, -1);
  const items = segments.map((segment, at) =>
    h(
      "a",
      { href: link("streams", "", { q: `${pathText(segments.slice(0, at + 1).join("/"))}/` }) },
      pathText(segment),
    ),
  );
  return [h("a", { href: link("streams") }, "Streams"), ...items].flatMap((each) => [
    each,
    h("span.dim", { "aria-hidden": true }, " / "),
  ]);
}

// Actions

function buttons(stream, signal, refresh) {
  const { path } = stream;
  const action = (text, verb, onclick, { isAllowed = may(verb, path), ...properties } = {}) => {
    return h(
      "button",
      {
        type: "button",
        onclick,
        disabled: !isAllowed,
        title: isAllowed
          ? null
          : `Not allowed: your token has no rule ${verb}:${verb === "create" ? "…" : path}.`,
        ...properties,
      },
      text,
    );
  };
  return [
    stream.isJson && h("a.button", { href: link("state", path) }, "State"),
    action("Fork", "create", () => forkStream(stream, signal), {
      isAllowed: may("read", path) && maySomewhere("create"),
    }),
    action("Trim", "delete", () => trimStream(stream, signal, refresh)),
    !stream.isClosed && action("Close", "append", () => closeStream(stream, signal, refresh)),
    action("Delete", "delete", () => deleteStream(stream, signal), { class: "danger" }),
  ];
}

async function closeStream(stream, signal, refresh) {
  const done = await ask({
    title: "Close this stream?",
    fields: [
      h(
        "p",
        "Nothing can be appended any more, and live readers are told that it has ended. This cannot be undone.",
      ),
    ],
    confirm: "Close the stream",
    danger: true,
    action: () =>
      send(streamUrl(stream.path), { method: "POST", headers: { "Stream-Closed": "true" }, signal }),
  });
  if (done) {
    toast("The stream is closed.");
    await refresh();
  }
}

async function forkStream(stream, signal) {
  const target = await ask({
    title: "Fork this stream",
    confirm: "Fork",
    fields: [
      h(
        "p",
        "The fork begins with the messages up to the fork point, without copying them, and goes its own way from there.",
      ),
      field("Path of the fork", { name: "path", required: true, value: `${pathText(stream.path)}-fork` }),
      field("Fork point", {
        name: "offset",
        placeholder: `the tail, ${stream.tail}`,
        hint: "An offset; empty for the tail.",
      }),
    ],
    action: async (form) => {
      const path = canonicalPath(form.get("path").trim());
      const headers = { "Stream-Forked-From": `/v1/stream/${stream.path}` };
      if (form.get("offset").trim()) headers["Stream-Fork-Offset"] = form.get("offset").trim();
      const response = await send(streamUrl(path), { method: "PUT", headers, signal });
      if (response.status === 200) throw new Error("There is such a fork already. Choose another path.");
      return path;
    },
  });
  if (target) navigate("stream", target);
}

async function trimStream(stream, signal, refresh) {
  const done = await ask({
    title: "Trim this stream",
    confirm: "Trim",
    danger: true,
    fields: [
      h("p", "Everything before an offset is deleted. This cannot be undone."),
      field("Delete everything before", {
        name: "before",
        required: true,
        placeholder: stream.tail,
        hint: `An offset, as it is shown beside a message, or “now” for all that there is.`,
      }),
    ],
    action: (form) =>
      write("POST", `v1/stream/${stream.path}/__ds/trim`, { before: form.get("before").trim() }, { signal }),
  });
  if (done) {
    toast("The beginning of the stream is deleted.");
    await refresh();
  }
}

async function deleteStream(stream, signal) {
  const name = pathText(stream.path);
  const done = await ask({
    title: "Delete this stream?",
    fields: [
      h(
        "p",
        stream.entry
          ? `The stream and its ${count(stream.entry.messages, "message")} (${bytes(stream.entry.bytes)}) are gone for good.`
          : "The stream is gone for good.",
      ),
    ],
    confirm: "Delete the stream",
    danger: true,
    typed: [...new Set([name, stream.path])],
    action: () => send(url(`v1/stream/${stream.path}`), { method: "DELETE", signal }),
  });
  if (done) {
    toast("The stream is deleted.");
    navigate("streams");
  }
}
