// Subscriptions: durable cursors over streams, with their wakes, leases and lag.

import { fill, h, released } from "../lib/dom.js";
import { get, isAbort, pages, poll, send, streamUrl, write } from "../lib/api.js";
import { ask } from "../lib/dialog.js";
import { ago, bytes, count, duration, pathText, time, whole } from "../lib/format.js";
import { link, navigate, page } from "../lib/pages.js";
import { may, maySomewhere } from "../lib/session.js";
import { table } from "../lib/table.js";
import { badge, emptyView, errorView, facts, notAllowed, toast } from "../lib/views.js";

const POLL_MS = 5_000;
const LAGS_MAX = 200;
const LIST = "v1/stream/__ds/subscriptions";

page({
  name: "subscriptions",
  title: "Subscriptions",
  nav: "Subscriptions",
  order: 45,
  allowed: () => maySomewhere("subscribe"),
  render,
});

async function render({ root, path, signal, title }) {
  if (!maySomewhere("subscribe"))
    return void root.append(h("h1", "Subscriptions"), notAllowed("see subscriptions", "subscribe:**"));
  if (!path) return list(root, signal);
  title(decodeURIComponent(path));
  await one(root, path, signal);
}

async function list(root, signal) {
  const problem = h("div");
  let isLoaded = false;
  const rows = table({
    caption: "Subscriptions",
    columns: COLUMNS,
    empty: () =>
      !isLoaded
        ? "Loading …"
        : emptyView(
            "No subscriptions",
            h(
              "span",
              "A subscription wakes a worker or calls a webhook when its streams have new messages. ",
              h("code", "penstock subscription create --help"),
              " says how to make one.",
            ),
          ),
  });
  root.append(h("div.page-head", h("h1", "Subscriptions")), problem, rows.element);
  await poll(POLL_MS, signal, async () => {
    try {
      const found = [];
      for await (const listing of pages(LIST, {}, { signal })) found.push(...listing.subscriptions);
      isLoaded = true;
      rows.update(found);
      fill(problem);
    } catch (error) {
      if (isAbort(error)) throw error;
      fill(problem, errorView(error));
    }
  });
}

const status = (row) => badge(row.status, row.status === "active" ? "good" : "warn");
const COLUMNS = [
  {
    key: "id",
    title: "Subscription",
    sortable: true,
    cell: (row) => h("a", { href: link("subscriptions", encodeURIComponent(row.id)) }, row.id),
  },
  { key: "type", title: "Type", sortable: true, wide: true, cell: (row) => row.type },
  {
    key: "pattern",
    title: "Streams",
    cell: (row) => (row.pattern ? h("code", row.pattern) : count(row.streams, "stream")),
  },
  { key: "status", title: "Status", cell: status },
  {
    key: "pending",
    title: "Behind",
    numeric: true,
    sortable: true,
    cell: (row) => (row.pending ? badge(count(row.pending, "stream"), "warn") : "0"),
  },
  { key: "holder", title: "Lease", wide: true, cell: (row) => row.holder ?? h("span.dim", "free") },
];

async function one(root, path, signal) {
  const problem = h("div");
  const about = h("div.card");
  const state = h("span");
  const remove = h("button.danger", { type: "button", onclick: () => destroy(path) }, "Delete …");
  const streams = table({ caption: "Streams", columns: STREAMS, empty: "No stream matches yet." });
  root.append(
    h(
      "div.page-head",
      h("h1", decodeURIComponent(path)),
      state,
      h("a.button", { href: link("subscriptions") }, "All subscriptions"),
      remove,
    ),
    problem,
    about,
    h("h2", "Streams"),
    h("p.dim", "Lag is what was appended after the last acknowledgement."),
    streams.element,
  );
  await poll(POLL_MS, signal, async () => {
    try {
      const subscription = await get(`${LIST}/${path}`, {}, { signal });
      const rows = await withLags(subscription.streams, signal);
      await released();
      fill(state, status(subscription));
      fill(about, factsOf(subscription));
      streams.update(rows);
      fill(problem);
    } catch (error) {
      if (isAbort(error)) throw error;
      fill(problem, errorView(error));
    }
  });
}

function factsOf(each) {
  return facts([
    ["Type", each.type],
    ["Pattern", each.pattern && h("code", each.pattern)],
    [
      "Wake stream",
      each.wake_stream && h("a", { href: link("stream", each.wake_stream) }, pathText(each.wake_stream)),
    ],
    ["Webhook", each.webhook && h("code", each.webhook.url), "long"],
    ["Lease", `${duration(each.lease_ttl_ms / 1000)}, ${each.holder ? `held by ${each.holder}` : "free"}`],
    ["Wake", whole(each.generation)],
    ["Failed attempts", each.attempts ? badge(whole(each.attempts), "warn") : "0"],
    ["Next attempt", each.next_attempt_at && time(each.next_attempt_at)],
    ["Streams behind", whole(each.pending)],
    ["Created", h("time", { datetime: each.created_at, title: time(each.created_at) }, ago(each.created_at))],
    ["Description", each.description],
  ]);
}

/** Return the streams, the first ones with the bytes that are not acknowledged. */
async function withLags(streams, signal) {
  const position = (offset) => (offset && offset.includes("_") ? Number(offset.split("_")[1]) : 0);
  return Promise.all(
    streams.map(async (stream, at) => {
      if (at >= LAGS_MAX || !may("read", stream.path)) return { ...stream, lag: null };
      try {
        const head = await send(streamUrl(stream.path), { method: "HEAD", signal });
        const tail = head.headers.get("stream-next-offset");
        return { ...stream, tail, lag: Math.max(0, position(tail) - position(stream.acked_offset)) };
      } catch (error) {
        if (isAbort(error)) throw error;
        return { ...stream, lag: null };
      }
    }),
  );
}

const STREAMS = [
  {
    key: "path",
    title: "Stream",
    sortable: true,
    cell: (row) => h("a", { href: link("stream", row.path) }, pathText(row.path)),
  },
  {
    key: "lag",
    title: "Lag",
    numeric: true,
    sortable: true,
    cell: (row) =>
      row.lag === null ? h("span.dim", "–") : row.lag ? badge(bytes(row.lag), "warn") : "up to date",
  },
  { key: "acked_offset", title: "Acknowledged", wide: true, cell: (row) => h("code", row.acked_offset) },
  { key: "link_type", title: "By", wide: true, cell: (row) => row.link_type },
];

async function destroy(path) {
  const name = decodeURIComponent(path);
  const done = await ask({
    title: "Delete this subscription?",
    confirm: "Delete",
    danger: true,
    typed: [name],
    fields: [h("p", "Its cursors are lost; a new one of the same name begins at the tails of its streams.")],
    action: () => write("DELETE", `${LIST}/${path}`),
  });
  if (!done) return;
  toast("The subscription was deleted.");
  navigate("subscriptions");
}
