// Overview: what the server did in the last hour, and which streams are busy now.

import { fill, h, released } from "../lib/dom.js";
import { get, poll, send, url } from "../lib/api.js";
import {
  byteRate,
  bytes,
  duration,
  milliseconds,
  pathText,
  rate,
  short,
  time,
  whole,
} from "../lib/format.js";
import { link, page } from "../lib/pages.js";
import { may } from "../lib/session.js";
import { chart } from "../lib/chart.js";
import { table } from "../lib/table.js";
import { badge, emptyView, errorView, facts } from "../lib/views.js";

const POLL_MS = 5_000;
const FIRST_MS = 1_500; // the server begins to count by stream when it is first asked
const SAMPLES_MAX = 360;

const CHARTS = [
  { title: "Appends", keys: ["appends_per_s"], format: rate },
  { title: "Messages", keys: ["messages_per_s"], format: rate },
  { title: "Reads", keys: ["reads_per_s"], format: rate },
  { title: "Bytes", keys: ["bytes_in_per_s", "bytes_out_per_s"], names: ["in", "out"], format: byteRate },
  {
    title: "Commit latency",
    keys: ["commit_p50_ms", "commit_p99_ms"],
    names: ["p50", "p99"],
    format: milliseconds,
  },
  { title: "Event loop lag, highest", keys: ["loop_lag_max_ms"], format: milliseconds },
  {
    title: "Live readers",
    keys: ["live_readers", "connections"],
    names: ["readers", "connections"],
    format: short,
  },
  { title: "Free disk", keys: ["disk_free_bytes"], format: bytes },
];

page({ name: "overview", title: "Overview", nav: "Overview", order: 10, render });

async function render({ root, signal }) {
  const state = h("span");
  const server = h("div.card", { "aria-busy": true });
  const charts = h("div.charts");
  const problem = h("div");
  const busiest = table({
    caption: "Busiest streams",
    columns: COLUMNS,
    empty: "No stream has been written to in the last seconds.",
  });
  root.append(h("div.page-head", h("h1", "Overview"), state), problem, server);
  const ready = () => readiness(state, signal);
  if (!may("read", "__ds/metrics")) {
    await ready();
    fill(
      server,
      emptyView(
        "Activity is not shown",
        h(
          "span",
          "Your token may not read the activity of this server. It needs the rule ",
          h("code", "read:__ds/metrics"),
          ".",
        ),
        h("a.button", { href: link("streams") }, "Streams"),
      ),
    );
    return;
  }
  root.append(charts, h("h2", "Busiest streams"), busiest.element);
  let samples = [];
  const look = async () => {
    try {
      const [activity] = await Promise.all([
        get("v1/activity", { since: samples.at(-1)?.time }, { signal }),
        ready(),
      ]);
      await released();
      samples = [...samples, ...activity.samples].slice(-SAMPLES_MAX);
      fill(problem);
      const { current } = activity;
      const isNew = current && current.time !== samples.at(-1)?.time;
      draw({ activity, samples: isNew ? [...samples, current] : samples, server, charts });
      busiest.update(activity.streams);
    } catch (error) {
      if (signal.aborted) return;
      fill(problem, errorView(error));
    }
  };
  await poll(POLL_MS, signal, look, FIRST_MS);
}

const COLUMNS = [
  {
    key: "path",
    title: "Stream",
    sortable: true,
    cell: (row) => h("a", { href: link("stream", row.path) }, pathText(row.path)),
  },
  {
    key: "appends_per_s",
    title: "Appends",
    numeric: true,
    sortable: true,
    cell: (row) => rate(row.appends_per_s),
  },
  {
    key: "bytes_per_s",
    title: "Bytes",
    numeric: true,
    sortable: true,
    cell: (row) => byteRate(row.bytes_per_s),
  },
  {
    key: "live_readers",
    title: "Live readers",
    numeric: true,
    sortable: true,
    cell: (row) => whole(row.live_readers),
  },
];

function draw({ activity, samples, server, charts }) {
  const current = samples.at(-1) ?? {};
  const uptime = (new Date(activity.now) - new Date(activity.started_at)) / 1000;
  server.removeAttribute("aria-busy");
  fill(
    server,
    facts([
      ["Version", activity.version],
      ["Uptime", h("span", { title: `since ${time(activity.started_at)}` }, duration(uptime))],
      ["Streams", isKnown(current.streams) ? whole(current.streams) : null],
      ["Stored", isKnown(current.stored_bytes) ? bytes(current.stored_bytes) : null],
      ["Free disk", isKnown(current.disk_free_bytes) ? bytes(current.disk_free_bytes) : null],
      ["Live readers", whole(current.live_readers)],
      ["Connections", whole(current.connections)],
    ]),
  );
  const times = samples.map((sample) => sample.time);
  const known = CHARTS.filter(
    (each) =>
      samples.length === 0 ||
      samples.some((sample) => isKnown(sample[each.keys[0]])) ||
      each.keys[0].startsWith("commit"),
  );
  fill(
    charts,
    known.map(({ title, keys, names = keys, format }) =>
      chart({
        title,
        times,
        format,
        series: keys.map((key, at) => ({ name: names[at], values: samples.map((sample) => sample[key]) })),
      }),
    ),
  );
}

const isKnown = (value) => value !== null && value !== undefined;

async function readiness(element, signal) {
  try {
    await send(url("readyz"), { signal, keepSession: true });
    fill(element, badge("Ready", "good"));
  } catch (error) {
    if (!signal.aborted) fill(element, badge(error.problem?.reason ?? "Not ready", "bad"));
  }
}
