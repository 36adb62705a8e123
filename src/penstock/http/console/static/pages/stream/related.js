// What a stream has to do with others: producers, forks, subscriptions.

import { fill, h } from "../../lib/dom.js";
import { get, isAbort, pages, send, streamUrl, url } from "../../lib/api.js";
import { bytes, count, pathText, time, whole } from "../../lib/format.js";
import { link } from "../../lib/pages.js";
import { matches, maySomewhere } from "../../lib/session.js";
import { table } from "../../lib/table.js";
import { badge, emptyView, errorView, notAllowed } from "../../lib/views.js";

const LOADED_MAX = 10_000;
const DEPTH_MAX = 4;
const FORKS_MAX = 200;
const SUBSCRIPTIONS_MAX = 100;
const LINKS_MAX = 2_000;

/** Draw something that has to be asked for into a panel; errors are shown there. */
export function loading(panel, action) {
  fill(panel, h("p.dim", "Loading …"));
  const run = () => action().catch((error) => !isAbort(error) && fill(panel, errorView(error, run)));
  run();
}

export function producersPanel(panel, stream, signal) {
  loading(panel, async () => {
    const rows = [];
    let total = 0;
    for await (const page of pages(`v1/stream/${stream.path}/__ds/producers`, { limit: 1000 }, { signal })) {
      rows.push(...page.producers);
      total = page.total;
      if (rows.length >= LOADED_MAX) break;
    }
    if (rows.length === 0)
      return void fill(
        panel,
        emptyView(
          "No producers",
          "Nobody has appended with a producer id, which makes repeated appends harmless.",
        ),
      );
    const columns = [
      { key: "id", title: "Producer", sortable: true, cell: (row) => h("code", row.id) },
      { key: "epoch", title: "Epoch", numeric: true, sortable: true, cell: (row) => whole(row.epoch) },
      { key: "seq", title: "Last sequence", numeric: true, sortable: true, cell: (row) => whole(row.seq) },
    ];
    fill(
      panel,
      h(
        "p.dim",
        `${count(total, "producer")}. An append with an epoch below that of its producer is refused.`,
      ),
      table({ caption: "Producers", columns, rows }).element,
    );
  });
}

export function forksPanel(panel, stream, signal) {
  loading(panel, async () => {
    const { sources } = await get(`v1/stream/${stream.path}/__ds/forks`, { limit: 1 }, { signal });
    const own = h(
      "li",
      h("div.branch", h("strong", pathText(stream.path)), badge("this stream", "accent")),
      await children(stream.path, 1, signal),
    );
    if (sources.length === 0 && !own.querySelector("ul"))
      return void fill(
        panel,
        emptyView(
          "No forks",
          "This stream is no fork, and none was made of it. A fork shares the messages up to its fork point.",
        ),
      );
    // The farthest source is the root of the tree.
    const tree = sources.reduce((below, source) => {
      const name =
        source.path === null
          ? h("span.dim", "a stream that you may not read")
          : source.deleted
            ? h("span", pathText(source.path))
            : h("a", { href: link("stream", source.path) }, pathText(source.path));
      return h(
        "li",
        h(
          "div.branch",
          h("span", name, source.deleted && [" ", badge("deleted")]),
          h("span.dim.numeric", `up to ${source.offset}`),
        ),
        h("ul", below),
      );
    }, own);
    fill(panel, h("ul.tree.card", { "aria-label": "Forks" }, tree));
  });
}

async function children(path, depth, signal) {
  const { forks, next } = await get(`v1/stream/${path}/__ds/forks`, { limit: FORKS_MAX }, { signal });
  if (forks.length === 0) return null;
  const items = [];
  for (const fork of forks) {
    // Few have forks of their own, and a deep tree is opened page by page.
    const below =
      depth < DEPTH_MAX && forks.length <= 20 ? await children(fork.path, depth + 1, signal) : null;
    items.push(
      h(
        "li",
        h(
          "div.branch",
          h(
            "span",
            h("a", { href: link("stream", fork.path) }, pathText(fork.path)),
            fork.closed && [" ", badge("closed")],
          ),
          h("span.dim.numeric", `${count(fork.messages, "message")}, ${bytes(fork.bytes)}`),
        ),
        below,
      ),
    );
  }
  if (next !== null) items.push(h("li.dim", `More than ${whole(FORKS_MAX)} forks: the rest is not shown.`));
  return h("ul", items);
}

export function subscriptionsPanel(panel, stream, signal) {
  if (!maySomewhere("subscribe")) return void fill(panel, notAllowed("see subscriptions", "subscribe:**"));
  loading(panel, async () => {
    const rows = [];
    for await (const page of pages("v1/stream/__ds/subscriptions", {}, { signal })) {
      for (const each of page.subscriptions) {
        const isCandidate =
          each.pattern === null
            ? each.streams > 0
            : matches(each.pattern.split("/"), stream.path.split("/")) || each.streams > 0;
        if (isCandidate && rows.length < SUBSCRIPTIONS_MAX) {
          const row = await subscribed(each, stream, signal);
          if (row) rows.push(row);
        }
      }
    }
    if (rows.length === 0)
      return void fill(
        panel,
        emptyView(
          "No subscriptions",
          "No subscription names this stream. A subscription wakes workers or a webhook when something is appended.",
        ),
      );
    const columns = [
      { key: "id", title: "Subscription", sortable: true, cell: (row) => h("code", row.id) },
      { key: "type", title: "Type", sortable: true, cell: (row) => row.type },
      {
        key: "status",
        title: "Status",
        cell: (row) => badge(row.status, row.status === "active" ? "good" : ""),
      },
      {
        key: "lag",
        title: "Lag",
        numeric: true,
        sortable: true,
        value: (row) => row.lag.bytes,
        cell: (row) => row.lag.text,
      },
      { key: "acked", title: "Acknowledged", wide: true, cell: (row) => h("code.dim", row.acked) },
      { key: "created_at", title: "Created", wide: true, cell: (row) => time(row.created_at) },
    ];
    fill(panel, table({ caption: "Subscriptions to this stream", columns, rows }).element);
  });
}

/** Return the row of a subscription if it has the stream, with how far behind it is. */
async function subscribed(summary, stream, signal) {
  if (summary.streams > LINKS_MAX)
    return {
      ...summary,
      acked: "–",
      lag: { bytes: null, text: `not looked up: ${whole(summary.streams)} streams` },
    };
  const subscription = await get(
    `v1/stream/__ds/subscriptions/${encodeURIComponent(summary.id)}`,
    {},
    { signal },
  );
  const entry = subscription.streams.find((each) => each.path === stream.path);
  if (!entry) return null;
  return { ...summary, acked: entry.acked_offset, lag: await lagOf(entry.acked_offset, stream, signal) };
}

async function lagOf(acked, stream, signal) {
  const head = await send(url(`v1/stream/${stream.path}`), { method: "HEAD", signal });
  const tail = head.headers.get("stream-next-offset");
  if (acked === tail) return { bytes: 0, text: "0" };
  const [from, to] = [acked, tail].map((offset) => Number(offset.split("_")[1]));
  const size = Number.isFinite(from) ? Math.max(to - from, 0) : to;
  if (!stream.isJson) return { bytes: size, text: bytes(size) };
  const { ordinals } = await (
    await send(streamUrl(stream.path, { offset: acked, splits: "1" }), { signal })
  ).json();
  return { bytes: size, text: `${count(ordinals.at(-1) - ordinals[0], "message")}, ${bytes(size)}` };
}
