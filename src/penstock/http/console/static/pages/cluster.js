// The cluster that this server is a node of: its nodes, the shards that they own, and the standbys of its database.

import { fill, h } from "../lib/dom.js";
import { get, isAbort, poll } from "../lib/api.js";
import { bytes, count, duration, whole } from "../lib/format.js";
import { page } from "../lib/pages.js";
import { may } from "../lib/session.js";
import { table } from "../lib/table.js";
import { badge, errorView, facts, notAllowed } from "../lib/views.js";

const POLL_MS = 3_000;
const RESOURCE = "__ds/metrics";
const isNode = document.querySelector('meta[name="penstock-cluster"]').content !== "";

page({
  name: "cluster",
  title: "Cluster",
  nav: "Cluster",
  order: 65,
  allowed: () => isNode && may("read", RESOURCE),
  render,
});

async function render({ root, signal }) {
  if (!may("read", RESOURCE)) {
    root.append(h("h1", "Cluster"), notAllowed("see the nodes of the cluster", `read:${RESOURCE}`));
    return;
  }
  const state = h("span");
  const problem = h("div");
  const warnings = h("div");
  const about = h("div.card", { "aria-busy": true }, h("p.dim", "Asking the database …"));
  const nodes = table({ caption: "Nodes", columns: NODES, empty: "Loading …" });
  const shards = table({ caption: "Shards", columns: SHARDS, empty: "Loading …" });
  root.append(
    h("div.page-head", h("h1", "Cluster"), state),
    problem,
    warnings,
    about,
    h("h2", "Nodes"),
    nodes.element,
    h("h2", "Shards"),
    shards.element,
  );
  const refresh = async () => {
    try {
      const cluster = await get("v1/cluster", {}, { signal });
      const living = new Set(cluster.nodes.filter((node) => node.lives).map((node) => node.name));
      const unowned = cluster.shards.filter((shard) => !living.has(shard.owner));
      const owned = (node) => cluster.shards.filter((shard) => shard.owner === node.name).length;
      fill(problem);
      fill(state, unowned.length === 0 ? badge("all shards owned", "good") : badge("not whole", "bad"));
      fill(warnings, warningsOf(cluster, unowned));
      about.removeAttribute("aria-busy");
      fill(about, aboutOf(cluster, living.size));
      nodes.update(cluster.nodes.map((node) => ({ ...node, shards: owned(node) })));
      shards.update(cluster.shards.map((shard) => ({ ...shard, isOwned: living.has(shard.owner) })));
    } catch (error) {
      if (isAbort(error)) throw error;
      about.removeAttribute("aria-busy");
      fill(state);
      fill(problem, errorView(error, refresh));
    }
  };
  await poll(POLL_MS, signal, refresh);
}

const aboutOf = (cluster, living) =>
  facts([
    ["Name", cluster.cluster],
    ["Nodes", `${whole(living)} of ${whole(cluster.nodes.length)}`],
    ["Shards", whole(cluster.shards.length)],
    ["PostgreSQL", cluster.postgresql],
    [
      "Standbys",
      cluster.standbys.length > 0
        ? cluster.standbys.map((standby) => `${standby.name} (${standby.sync})`).join(", ")
        : "none connected",
    ],
    [
      "A commit waits for",
      cluster.synchronous_standby_names ? h("code", cluster.synchronous_standby_names) : "no standby",
    ],
  ]);

function warningsOf(cluster, unowned) {
  const names = unowned.map((shard) => shard.shard).join(", ");
  return [
    unowned.length > 0 &&
      h(
        "p.notice",
        badge("not owned", "bad"),
        ` No node that lives owns ${unowned.length === 1 ? "shard" : "shards"} ${names}: their streams answer 503.`,
      ),
    cluster.synchronous_standby_names &&
      !cluster.standbys.some((standby) => standby.sync !== "async") &&
      h(
        "p.notice",
        badge("no standby", "bad"),
        " No synchronous standby is connected: appends wait until one is.",
      ),
    ...Object.entries(cluster.differing_settings).map(([name, groups]) =>
      h(
        "p.notice",
        badge("settings differ", "warn"),
        ` Nodes have different values of ${name}: ${groups.map((group) => group.join(", ")).join(" | ")}. `,
        "The owner of a stream goes by its own; give all the same.",
      ),
    ),
  ];
}

const stateOf = (node) => {
  if (!node.lives) return badge("silent", "bad");
  return node.leaving ? badge("leaving", "warn") : badge("lives", "good");
};

const NODES = [
  { key: "name", title: "Node", sortable: true },
  { key: "state", title: "State", cell: stateOf },
  { key: "shards", title: "Shards", numeric: true, sortable: true, cell: (row) => whole(row.shards) },
  {
    key: "beat_age_s",
    title: "Last beat",
    numeric: true,
    cell: (row) => (row.beat_age_s < 1 ? "now" : `${duration(row.beat_age_s)} ago`),
  },
  { key: "url", title: "URL", wide: true, cell: (row) => h("code", row.url) },
  { key: "version", title: "Version", wide: true },
];

const SHARDS = [
  { key: "shard", title: "Shard", numeric: true, sortable: true, cell: (row) => whole(row.shard) },
  {
    key: "owner",
    title: "Owner",
    sortable: true,
    cell: (row) => (row.isOwned ? row.owner : badge(row.owner ? `${row.owner}, silent` : "nobody", "bad")),
  },
  {
    key: "owned_s",
    title: "Since",
    numeric: true,
    sortable: true,
    cell: (row) => (row.owned_s === null ? "–" : duration(row.owned_s)),
  },
  { key: "epoch", title: "Epoch", numeric: true, sortable: true, wide: true, cell: (row) => whole(row.epoch) },
  {
    key: "journal_bytes",
    title: "Journal",
    numeric: true,
    sortable: true,
    cell: (row) =>
      h(
        "span",
        { title: "What the next owner would replay" },
        `${count(row.batches, "batch", "batches")}, ${bytes(row.journal_bytes)}`,
      ),
  },
];
