// Tables of the State Transfer Protocol: the rows of each as they come, its declaration, and who is notified.

import { append, fill, h, released } from "../lib/dom.js";
import { get, isAbort, pages, send, url } from "../lib/api.js";
import { count, pathText, time, whole } from "../lib/format.js";
import { preview } from "../lib/json.js";
import { follow } from "../lib/live.js";
import { link, page } from "../lib/pages.js";
import { may, maySomewhere } from "../lib/session.js";
import { table } from "../lib/table.js";
import { badge, copyButton, emptyView, errorView, facts, notAllowed, tabs } from "../lib/views.js";
import { nurlTable } from "./peers.js";

const ROWS_MAX = 500;
const LIVE_MS = 200;

page({
  name: "tables",
  title: "Tables",
  nav: "Tables",
  order: 40,
  allowed: () => maySomewhere("list"),
  render,
});

async function render({ root, path, signal, title }) {
  if (!path) return list(root, signal);
  title(`Table ${pathText(path)}`);
  await new TableView({ root, path, signal }).start();
}

async function list(root, signal) {
  root.append(h("div.page-head", h("h1", "Tables")));
  if (!maySomewhere("list")) return void root.append(notAllowed("list tables", "list:**"));
  const columns = [
    {
      key: "path",
      title: "Table",
      sortable: true,
      cell: (row) => h("a", { href: link("tables", row.path) }, pathText(row.path)),
    },
    { key: "types", title: "Schema", cell: (row) => row.types.join(", ") },
  ];
  const rows = [];
  let isLoaded = false;
  const tables = table({
    caption: "Tables",
    columns,
    empty: () =>
      !isLoaded
        ? "Loading …"
        : emptyView(
            "No tables",
            h(
              "span",
              "A table is a stream that other servers read by STP. Declare one with ",
              h("code", "penstock table create prices"),
              ".",
            ),
          ),
  });
  root.append(tables.element);
  for await (const listing of pages("v1/schema", {}, { signal })) {
    rows.push(...listing.streams.filter((each) => each.table));
    isLoaded = listing.next === null;
    tables.update(rows);
  }
}

class TableView {
  constructor({ root, path, signal }) {
    Object.assign(this, { root, path, signal, rows: [], last: 0, isPaused: false });
    this.state = h("span", { role: "status" });
    this.about = h("div.card");
    this.problem = h("div");
    this.log = table({ caption: "Rows", columns: ROWS, empty: "There is no row yet." });
    this.active = table({ caption: "Live keys", columns: ROWS, empty: "There is no live key." });
  }

  async start() {
    const address = url(`v1/table/${this.path}`).href;
    const panels = [
      [
        "log",
        "Rows",
        (panel) =>
          panel.append(
            h("p.dim", `The last ${ROWS_MAX} rows, newest first, as they come.`),
            this.log.element,
          ),
      ],
      ["active", "Live keys", (panel) => this.drawActive(panel)],
      ["listeners", "Listeners", (panel) => this.drawListeners(panel)],
    ];
    this.root.append(
      h(
        "div.page-head",
        h("h1", "Table ", pathText(this.path), " ", copyButton(address, "Copy SURL")),
        this.state,
        h("a.button", { href: link("state", this.path) }, "State"),
        h("a.button", { href: link("stream", this.path) }, "Stream"),
      ),
      this.about,
      this.problem,
    );
    await this.load(-ROWS_MAX);
    append(this.root, tabs("Parts of the table", panels));
    await this.followRows();
  }

  async load(since) {
    const response = await send(url(`v1/table/${this.path}`, { since_id: since, timeout: 0 }), {
      signal: this.signal,
    });
    const type = response.headers.get("content-type") ?? "";
    const last = Number(response.headers.get("stp-last-seqno") ?? 0);
    const rows = rowsOf(await response.text());
    await released();
    this.rows = [...rows.reverse(), ...this.rows].slice(0, ROWS_MAX);
    this.last = rows[0]?.seqno ?? this.last;
    this.log.update(this.rows);
    const parameter = (name) => type.match(new RegExp(`${name}=("[^"]*"|[^;]*)`))?.[1]?.replaceAll('"', "");
    fill(
      this.about,
      facts([
        ["Schema", parameter("schema")],
        ["Version", parameter("version")],
        ["Last SeqNo", whole(last)],
        ["Format", h("code", type), "long"],
        ["SURL", h("code", url(`v1/table/${this.path}`).href), "long"],
      ]),
    );
  }

  async followRows() {
    let timer = null;
    const moved = async () => {
      timer = null;
      try {
        await this.load(this.last);
        if (this.showsActive) await this.loadActive();
        fill(this.problem);
      } catch (error) {
        if (!isAbort(error)) fill(this.problem, errorView(error));
      }
    };
    const states = {
      live: ["live", "good"],
      connecting: ["connecting"],
      "catching-up": ["live", "good"],
      waiting: ["not connected", "warn"],
      closed: ["closed"],
      ended: ["not followed", "bad"],
    };
    await follow(this.path, {
      offset: "now",
      signal: this.signal,
      onState: (state) => fill(this.state, badge(...states[state])),
      onBatch: () => {
        timer ??= setTimeout(moved, LIVE_MS);
      },
    });
  }

  async drawActive(panel) {
    panel.append(h("p.dim", "The latest row of each key that was not deleted."), this.active.element);
    this.showsActive = true;
    try {
      await this.loadActive();
    } catch (error) {
      if (!isAbort(error)) fill(this.problem, errorView(error));
    }
  }

  async loadActive() {
    const address = url(`v1/table/${this.path}`, { view: "active", timeout: 0 });
    const rows = rowsOf(await (await send(address, { signal: this.signal })).text());
    await released();
    this.active.update(rows);
  }

  async drawListeners(panel) {
    if (!may("read", "__ds/nurls"))
      return void fill(panel, notAllowed("see who is notified", "read:__ds/nurls"));
    try {
      const { nurls } = await get("v1/nurls", { table: this.path }, { signal: this.signal });
      fill(
        panel,
        h(
          "p.dim",
          `${count(nurls.length, "Notify URL")} of other servers. They are told of changes of this table.`,
        ),
        nurlTable(nurls).element,
      );
    } catch (error) {
      if (!isAbort(error)) fill(panel, errorView(error));
    }
  }
}

/** Return the rows of a response: SeqNo, time, operation, key and record, with tabs between them. */
function rowsOf(text) {
  return text
    .split("\n")
    .filter(Boolean)
    .map((line) => {
      const [seqno, stamp, operation, key = "", ...record] = line.split("\t");
      return { seqno: Number(seqno), stamp, operation, key, record: record.join("\t") };
    });
}

const ROWS = [
  { key: "seqno", title: "SeqNo", numeric: true, cell: (row) => whole(row.seqno) },
  {
    key: "stamp",
    title: "Time",
    wide: true,
    cell: (row) => h("time", { datetime: row.stamp }, time(row.stamp)),
  },
  {
    key: "operation",
    title: "Change",
    cell: (row) =>
      row.operation === "-"
        ? badge("delete", "bad")
        : badge(row.operation === "+" ? "put" : row.operation, "accent"),
  },
  { key: "key", title: "Key", cell: (row) => h("code", row.key) },
  { key: "record", title: "Record", cell: (row) => h("code.value-preview", preview(row.record, 300)) },
];
