// Pipelines beside the server: runs, lag, the times of batches, dead letters, and queries over the tables.

import { fill, h } from "../lib/dom.js";
import { get, isAbort, poll, write } from "../lib/api.js";
import { chart } from "../lib/chart.js";
import { ask } from "../lib/dialog.js";
import { ago, byteRate, bytes, count, duration, pathText, rate, short, time, whole } from "../lib/format.js";
import { jsonView, preview } from "../lib/json.js";
import { link, page } from "../lib/pages.js";
import { may } from "../lib/session.js";
import { table } from "../lib/table.js";
import { badge, emptyView, errorView, facts, notAllowed, tabs, toast } from "../lib/views.js";

const POLL_MS = 10_000;
const RESOURCE = "__ds/pipelines";
const LETTERS = 100;

page({
  name: "pipelines",
  title: "Pipelines",
  nav: "Pipelines",
  order: 60,
  allowed: () => may("read", RESOURCE),
  render,
});

async function render({ root, path, signal, title }) {
  if (!may("read", RESOURCE)) {
    root.append(h("h1", "Pipelines"), notAllowed("see the pipelines of this server", `read:${RESOURCE}`));
    return;
  }
  if (!path) return list(root, signal);
  const name = decodeURIComponent(path);
  title(name);
  await new PipelineView({ root, name, signal }).start();
}

async function list(root, signal) {
  root.append(h("div.page-head", h("h1", "Pipelines")));
  const { pipelines } = await get("v1/pipelines", {}, { signal });
  if (pipelines.length === 0) {
    root.append(
      emptyView(
        "No pipelines",
        h(
          "span",
          "A server that reaches the warehouse of a pipeline shows it here. Name its file in the setting ",
          h("code", "pipelines"),
          ": ",
          h("code", "penstock serve --pipelines shop=/srv/shop/pipeline.toml"),
          ".",
        ),
      ),
    );
    return;
  }
  const columns = [
    {
      key: "name",
      title: "Pipeline",
      sortable: true,
      cell: (row) => h("a", { href: link("pipelines", encodeURIComponent(row.name)) }, row.name),
    },
    { key: "file", title: "File", cell: (row) => h("code", row.file) },
  ];
  root.append(table({ caption: "Pipelines", columns, rows: pipelines }).element);
}

class PipelineView {
  constructor({ root, name, signal }) {
    Object.assign(this, { root, name, signal, address: `v1/pipelines/${encodeURIComponent(name)}` });
    this.state = h("span");
    this.problem = h("div");
    this.about = h("div.card", { "aria-busy": true }, h("p.dim", "Asking the warehouse …"));
    this.charts = h("div.charts");
    const unless = (text) => () => (this.status ? text : "Loading …");
    this.runs = table({ caption: "Runs", columns: RUNS, empty: unless("The log of the tables has no run.") });
    this.streams = table({
      caption: "Streams",
      columns: STREAMS,
      empty: unless("No stream has been read yet."),
    });
    this.types = table({ caption: "State tables", columns: TYPES, empty: unless("No type yet.") });
    this.expectations = table({
      caption: "Expectations",
      columns: EXPECTATIONS,
      empty: unless("The pipeline has no expectations."),
    });
    this.warnings = h("div");
  }

  async start() {
    const panels = [
      [
        "progress",
        "Progress",
        (panel) =>
          panel.append(
            this.charts,
            h("h2", "Runs"),
            this.runs.element,
            h("h2", "Streams"),
            this.streams.element,
            h("h2", "State tables"),
            this.types.element,
            h("h2", "Expectations"),
            this.expectations.element,
          ),
      ],
      ["letters", "Dead letters", (panel) => this.drawLetters(panel)],
      ["sql", "SQL", (panel) => this.drawSql(panel)],
    ];
    this.root.append(
      h(
        "div.page-head",
        h("h1", this.name),
        this.state,
        h("a.button", { href: link("pipelines") }, "All pipelines"),
      ),
      this.problem,
      this.warnings,
      this.about,
      tabs("Parts of the pipeline", panels),
    );
    await poll(POLL_MS, this.signal, () => this.refresh());
  }

  async refresh() {
    try {
      const { status } = await get(this.address, {}, { signal: this.signal });
      fill(this.problem);
      this.draw(status);
    } catch (error) {
      if (isAbort(error)) throw error;
      this.about.removeAttribute("aria-busy");
      if (!this.status) fill(this.about, h("p.dim", "There is nothing to show yet."));
      fill(
        this.problem,
        errorView(error, () => this.refresh()),
      );
    }
  }

  draw(status) {
    this.status = status;
    const { details } = status;
    const last = details.batches.at(-1);
    this.about.removeAttribute("aria-busy");
    fill(this.state, details.is_running ? badge("running", "good") : badge("not running"));
    fill(
      this.about,
      facts([
        ["Batch", whole(status.batch)],
        [
          "Last commit",
          last &&
            h(
              "time",
              { datetime: last.committed_at, title: time(last.committed_at) },
              ago(last.committed_at),
            ),
        ],
        ["Events", whole(status.events)],
        [
          "Lag",
          status.lag === null
            ? h("span", { title: status.trouble }, "unknown")
            : count(status.lag, "message"),
        ],
        ["Dead letters", status.dead_letters > 0 ? badge(whole(status.dead_letters), "warn") : "0"],
        ["Streams", whole(status.streams)],
        ["Files", whole(status.files)],
        ["Warehouse", h("code", status.warehouse), "long"],
      ]),
      status.trouble && h("p.dim", `The lag is unknown: ${status.trouble}`),
    );
    const times = details.batches.map((batch) => batch.committed_at);
    const values = (key) => [{ name: key, values: details.batches.map((batch) => batch[key]) }];
    fill(
      this.charts,
      chart({ title: "Time of a batch", times, series: values("seconds"), format: seconds }),
      chart({ title: "Events of a batch", times, series: values("events"), format: short }),
      chart({ title: "Dead letters of a batch", times, series: values("dead_letters"), format: short }),
    );
    this.runs.update(details.runs);
    this.streams.update(Object.entries(details.streams).map(([stream, progress]) => ({ stream, ...progress })));
    this.types.update(status.types);
    this.expectations.update(status.expectations);
    fill(this.warnings, [
      ...Object.entries(status.failing).map(([name, reason]) =>
        h("p.notice", badge("not up to date", "warn"), ` publish.${name}: ${reason}`),
      ),
      ...Object.entries(status.drift).map(([name, change]) =>
        h(
          "p.notice",
          badge("drift", "warn"),
          ` types.${name}: the server's declaration has changed: ${change}`,
        ),
      ),
    ]);
    this.drawReasons?.();
    this.drawRelations?.();
  }

  drawLetters(panel) {
    const mayReplay = may("admin", RESOURCE);
    const button = (reason) =>
      h(
        "button",
        {
          type: "button",
          disabled: !mayReplay,
          title: mayReplay ? null : `Replaying needs the rule admin:${RESOURCE}.`,
          onclick: () => this.replay(reason),
        },
        "Replay …",
      );
    const show = (reason) =>
      h("button", { type: "button", onclick: () => this.reloadLetters(reason) }, "Show");
    const columns = [
      ...REASONS,
      {
        key: "actions",
        title: "Actions",
        cell: (row) => h("span.actions", show(row.reason), " ", button(row.reason)),
      },
    ];
    const reasons = table({ caption: "Reasons", columns, empty: "There are no dead letters." });
    const letters = table({
      caption: "Dead letters",
      columns: LETTER_COLUMNS,
      empty: "There are no dead letters.",
    });
    const more = h("button", { type: "button", hidden: true, onclick: () => load() }, "Load more");
    const problem = h("div");
    const chosen = h("p.dim", { "aria-live": "polite" });
    let [rows, next, reason] = [[], null, null];
    const load = async () => {
      try {
        const answer = await get(
          `${this.address}/dead-letters`,
          { limit: LETTERS, after: next, reason },
          { signal: this.signal },
        );
        rows = [...rows, ...answer.dead_letters];
        next = answer.next;
        letters.update(rows);
        more.hidden = next === null;
        fill(problem);
      } catch (error) {
        if (!isAbort(error)) fill(problem, errorView(error, load));
      }
    };
    this.reloadLetters = (only = null) => {
      [rows, next, reason] = [[], null, only];
      const all = h("button", { type: "button", onclick: () => this.reloadLetters() }, "Show all");
      fill(chosen, only === null ? [] : [`Only: ${only} `, all]);
      return load();
    };
    this.drawReasons = () =>
      reasons.update(
        Object.entries(this.status.details.reasons).map(([each, number]) => ({ reason: each, number })),
      );
    panel.append(
      h(
        "div.controls",
        h(
          "p.dim.grow",
          "Events that could not be used. A replay checks them again, against the current schemas and with corrected values; those that pass take their original place.",
        ),
        button(null),
      ),
      problem,
      h("h2", "Reasons"),
      reasons.element,
      h("h2", "Events"),
      chosen,
      letters.element,
      more,
    );
    if (this.status) this.drawReasons();
    load();
  }

  async replay(reason) {
    const fix = h("textarea", {
      rows: 2,
      spellcheck: "false",
      placeholder: 'json_merge_patch(value, \'{"name": "unknown"}\')',
    });
    const discard = h("input", { type: "checkbox" });
    const which = reason === null ? "Every dead letter" : `Every dead letter with the reason “${reason}”`;
    const body = () => ({
      ...(reason === null ? {} : { reason }),
      ...(fix.value.trim() ? { fix: fix.value } : {}),
      ...(discard.checked ? { discard: true } : {}),
    });
    const done = await ask({
      title: "Replay the dead letters?",
      confirm: "Replay",
      fields: [
        h(
          "p",
          `${which} of ${this.name} is checked against the current schemas; those that pass become events. The pipeline must not run meanwhile.`,
        ),
        h("label", "New value, as an SQL expression over the event (optional)", fix),
        h("label", discard, " Discard them instead: they do not become events"),
      ],
      action: () => write("POST", `${this.address}/replay`, body(), { signal: this.signal }),
    });
    if (!done) return;
    const settled =
      done.discarded > 0 ? `${whole(done.discarded)} discarded` : `${whole(done.replayed)} replayed`;
    toast(`${settled}, ${whole(done.invalid)} still invalid`);
    await Promise.all([this.refresh(), this.reloadLetters()]);
  }

  drawSql(panel) {
    if (!may("admin", RESOURCE))
      return void panel.append(notAllowed("query the tables", `admin:${RESOURCE}`));
    const input = h("textarea", {
      rows: 4,
      spellcheck: "false",
      "aria-label": "Query",
      placeholder: "SELECT * FROM events LIMIT 100",
    });
    const run = h("button.primary", { type: "submit" }, "Run");
    const cancel = h("button", { type: "button", hidden: true }, "Cancel");
    const result = h("div", { "aria-live": "polite" });
    const form = h(
      "form.card",
      input,
      h("div.actions", run, cancel, h("span.dim", "One SELECT in the SQL of DuckDB. Ctrl+Enter runs it.")),
    );
    const relations = h("div");
    const execute = async () => {
      const controller = new AbortController();
      cancel.onclick = () => controller.abort();
      [run.disabled, cancel.hidden] = [true, false];
      fill(result, h("p.dim", "Running …"));
      try {
        const signal = AbortSignal.any([this.signal, controller.signal]);
        fill(
          result,
          resultView(await write("POST", `${this.address}/sql`, { query: input.value }, { signal })),
        );
      } catch (error) {
        fill(result, isAbort(error) ? h("p.dim", "Cancelled.") : errorView(error));
      }
      [run.disabled, cancel.hidden] = [false, true];
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!run.disabled && input.value.trim()) execute();
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    this.drawRelations = () => {
      if (relations.childElementCount > 0) return; // what somebody has opened stays open
      const use = (name) => {
        input.value = `SELECT * FROM ${name} LIMIT 100`;
        input.focus();
      };
      fill(
        relations,
        h("h2", "Tables"),
        Object.entries(this.status.details.relations).map(([name, columns]) =>
          h(
            "details.relation",
            h("summary", h("code", name)),
            h("p", h("button", { type: "button", onclick: () => use(name) }, "Query")),
            h(
              "ul.plain",
              columns.map((column) => h("li", h("code", column.name), " ", h("span.dim", column.type))),
            ),
          ),
        ),
      );
    };
    panel.append(form, result, relations);
    if (this.status) this.drawRelations();
  }
}

function resultView({ columns, rows, truncated, seconds: took }) {
  const heads = columns.map((column, at) => ({
    key: String(at),
    title: column.name,
    numeric: /INT|DOUBLE|FLOAT|DECIMAL/.test(column.type),
    sortable: true,
    value: (row) => row[at],
    cell: (row) => cellOf(row[at]),
  }));
  const more = truncated ? "; there are more: add a condition or LIMIT" : "";
  return [
    h("p.dim", `${count(rows.length, "row")} in ${seconds(took)}${more}`),
    table({ caption: "Result", columns: heads, rows, empty: "No rows." }).element,
  ];
}

function cellOf(value) {
  if (value === null) return h("span.dim", "NULL");
  if (typeof value === "object") return h("code", preview(JSON.stringify(value), 200));
  return preview(String(value), 200);
}

const seconds = (value) =>
  value === null || value === undefined
    ? "–"
    : value < 60
      ? `${value.toFixed(value < 10 ? 2 : 1)} s`
      : duration(value);

const RUNS = [
  { key: "run", title: "Run", numeric: true, cell: (row) => whole(row.run) },
  {
    key: "started_at",
    title: "Started",
    cell: (row) => h("time", { datetime: row.started_at }, time(row.started_at)),
  },
  {
    key: "committed_at",
    title: "Last commit",
    cell: (row) => h("time", { datetime: row.committed_at }, time(row.committed_at)),
  },
  {
    key: "batches",
    title: "Batches",
    wide: true,
    numeric: true,
    cell: (row) => `${whole(row.first_batch)} – ${whole(row.last_batch)}`,
  },
  { key: "events", title: "Events", numeric: true, cell: (row) => whole(row.events) },
];
const STREAMS = [
  {
    key: "stream",
    title: "Stream",
    sortable: true,
    cell: (row) => h("a", { href: link("stream", row.stream) }, pathText(row.stream)),
  },
  {
    key: "lag_messages",
    title: "Messages behind",
    numeric: true,
    sortable: true,
    cell: (row) => whole(row.lag_messages),
  },
  {
    key: "lag_bytes",
    title: "Bytes behind",
    wide: true,
    numeric: true,
    sortable: true,
    cell: (row) => bytes(row.lag_bytes),
  },
  {
    key: "messages_per_s",
    title: "Messages read",
    numeric: true,
    sortable: true,
    cell: (row) => rate(row.messages_per_s),
  },
  {
    key: "bytes_per_s",
    title: "Bytes read",
    wide: true,
    numeric: true,
    sortable: true,
    cell: (row) => byteRate(row.bytes_per_s),
  },
];
const TYPES = [
  { key: "name", title: "Type", sortable: true, cell: (row) => row.name },
  { key: "changes", title: "Changes", numeric: true, sortable: true, cell: (row) => whole(row.changes) },
  { key: "rows", title: "Rows", numeric: true, sortable: true, cell: (row) => whole(row.rows) },
  {
    key: "folded",
    title: "Folded to batch",
    numeric: true,
    wide: true,
    cell: (row) => [whole(row.folded), row.behind && [" ", badge("behind", "warn")]],
  },
  { key: "declared", title: "Columns", wide: true, cell: (row) => (row.declared ? "typed" : "JSON") },
];
const EXPECTATIONS = [
  { key: "name", title: "Expectation", sortable: true, cell: (row) => row.name },
  { key: "sql", title: "Condition", wide: true, cell: (row) => h("code", row.sql) },
  { key: "action", title: "Action", cell: (row) => row.action },
  {
    key: "violated",
    title: "Violated",
    numeric: true,
    sortable: true,
    cell: (row) => (row.violated > 0 ? badge(whole(row.violated), "warn") : "0"),
  },
  {
    key: "last_batch",
    title: "Last batch",
    numeric: true,
    wide: true,
    cell: (row) => (row.last_batch === null ? "–" : whole(row.last_batch)),
  },
];
const REASONS = [
  { key: "reason", title: "Reason", cell: (row) => row.reason },
  { key: "number", title: "Events", numeric: true, sortable: true, cell: (row) => whole(row.number) },
];
const LETTER_COLUMNS = [
  {
    key: "stream",
    title: "Stream",
    cell: (row) => h("a", { href: link("stream", row.stream) }, pathText(row.stream)),
  },
  { key: "ordinal", title: "Message", numeric: true, cell: (row) => whole(row.ordinal + 1) },
  {
    key: "entity",
    title: "Entity",
    cell: (row) => (row.type === null ? h("span.dim", "–") : [row.type, " ", h("code", row.key)]),
  },
  { key: "error", title: "Reason", cell: (row) => row.error },
  {
    key: "value",
    title: "Value",
    wide: true,
    cell: (row) =>
      h("details", h("summary", h("code", preview(row.value ?? "", 60))), jsonView(row.value ?? "")),
  },
];
