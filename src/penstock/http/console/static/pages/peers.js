// Other servers: the tables that this one follows, and the URLs at which others want to be notified.

import { fill, h } from "../lib/dom.js";
import { isAbort, pages, poll, write } from "../lib/api.js";
import { ask, field } from "../lib/dialog.js";
import { canonicalPath, pathText, time, whole } from "../lib/format.js";
import { link, page } from "../lib/pages.js";
import { may, maySomewhere } from "../lib/session.js";
import { table } from "../lib/table.js";
import { badge, emptyView, errorView, notAllowed, toast } from "../lib/views.js";

const POLL_MS = 3_000;
const STATES = { following: "good", waiting: "warn", failing: "bad", stopped: "bad", paused: "warn" };

page({
  name: "peers",
  title: "Peers",
  nav: "Peers",
  order: 50,
  allowed: () => maySomewhere("follow") || may("read", "__ds/nurls"),
  render,
});

async function render({ root, signal }) {
  const add = h(
    "button.primary",
    { type: "button", disabled: !maySomewhere("follow"), onclick: () => followTable(refresh) },
    "Follow a table",
  );
  const problem = h("div");
  let isLoaded = false;
  const mirrors = table({
    caption: "Mirrors",
    columns: mirrorColumns((row) => unfollow(row, refresh)),
    empty: () =>
      !isLoaded
        ? "Loading …"
        : emptyView(
            "No mirrors",
            "A mirror is a table here that follows a table of another server, row by row.",
          ),
  });
  const nurls = nurlTable([]);
  root.append(
    h("div.page-head", h("h1", "Peers"), add),
    problem,
    h("h2", "Mirrors"),
    maySomewhere("follow") ? mirrors.element : notAllowed("see mirrors", "follow:**"),
    h("h2", "Notify URLs"),
    may("read", "__ds/nurls") ? nurls.element : notAllowed("see who is notified", "read:__ds/nurls"),
  );
  async function refresh() {
    try {
      const following = maySomewhere("follow") ? await all("v1/follow", "mirrors", signal) : [];
      isLoaded = true;
      mirrors.update(following);
      if (may("read", "__ds/nurls")) nurls.update(await all("v1/nurls", "nurls", signal));
      fill(problem);
    } catch (error) {
      if (isAbort(error)) throw error;
      fill(problem, errorView(error, refresh));
    }
  }
  await poll(POLL_MS, signal, refresh);
}

async function all(path, member, signal) {
  const rows = [];
  for await (const page of pages(path, {}, { signal })) rows.push(...page[member]);
  return rows;
}

const mirrorColumns = (onEnd) => [
  {
    key: "table",
    title: "Table",
    sortable: true,
    cell: (row) => h("a", { href: link("tables", row.table) }, pathText(row.table)),
  },
  { key: "surl", title: "Source", wide: true, cell: (row) => h("code", row.surl) },
  {
    key: "state",
    title: "State",
    cell: (row) => [badge(row.state, STATES[row.state] ?? "warn"), row.reason && h("p.dim", row.reason)],
  },
  { key: "seqno", title: "SeqNo", numeric: true, cell: (row) => whole(row.seqno) },
  { key: "appended", title: "Rows", numeric: true, wide: true, cell: (row) => whole(row.appended) },
  {
    key: "conflicts",
    title: "Conflicts",
    numeric: true,
    wide: true,
    cell: (row) => (row.conflicts ? badge(whole(row.conflicts), "warn") : "0"),
  },
  {
    key: "end",
    title: "Action",
    cell: (row) =>
      may("follow", row.table) && h("button.quiet", { type: "button", onclick: () => onEnd(row) }, "End"),
  },
];

/** Return a table of Notify URLs. */
export function nurlTable(rows) {
  const columns = [
    { key: "nurl", title: "Notify URL", sortable: true, cell: (row) => h("code", row.nurl) },
    { key: "event", title: "Event", sortable: true, cell: (row) => row.event },
    {
      key: "state",
      title: "State",
      cell: (row) => [
        badge(row.state, row.state === "active" ? "good" : row.state === "given-up" ? "bad" : ""),
        row.reason && h("p.dim", row.reason),
      ],
    },
    { key: "tables", title: "Tables", wide: true, cell: (row) => row.tables.map(pathText).join(", ") },
    {
      key: "expires_at",
      title: "Expires",
      wide: true,
      cell: (row) => (row.expires_at ? time(row.expires_at) : "–"),
    },
  ];
  return table({ caption: "Notify URLs", columns, rows, empty: "No other server has asked to be notified." });
}

async function followTable(refresh) {
  const done = await ask({
    title: "Follow a table of another server",
    confirm: "Follow",
    fields: [
      field("State URL", {
        name: "surl",
        type: "url",
        required: true,
        placeholder: "https://peer.example/v1/table/users",
        hint: "The SURL of the table: any STP server.",
      }),
      field("Table here", {
        name: "table",
        required: true,
        placeholder: "mirrors/users",
        hint: "It is created; only the source writes to it.",
      }),
    ],
    action: (form) =>
      write("PUT", `v1/follow/${canonicalPath(form.get("table").trim())}`, { surl: form.get("surl").trim() }),
  });
  if (done) await refresh();
}

async function unfollow(row, refresh) {
  const done = await ask({
    title: "End this mirror?",
    confirm: "End the mirror",
    danger: true,
    fields: [h("p", `${pathText(row.table)} follows ${row.surl} no more. Its rows stay.`)],
    action: () => write("DELETE", `v1/follow/${row.table}`),
  });
  if (!done) return;
  toast("The mirror has ended.");
  await refresh();
}
