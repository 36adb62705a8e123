// State: the entities that a stream folds to, now and at any offset, with the history of each; and its schema.

import { append, fill, h } from "../lib/dom.js";
import { get, isAbort, pages, send, sleep, url } from "../lib/api.js";
import { canonicalPath, count, pathText, whole } from "../lib/format.js";
import { jsonView, parse, preview } from "../lib/json.js";
import { follow } from "../lib/live.js";
import { link, navigate, page, replaceQuery } from "../lib/pages.js";
import { maySomewhere } from "../lib/session.js";
import { field, select } from "../lib/dialog.js";
import { table } from "../lib/table.js";
import { badge, emptyView, errorView, notAllowed, tabs } from "../lib/views.js";
import { drawEntity } from "./state/entity.js";
import { eventsAfter, loadStops, stopBefore } from "./state/points.js";

const PAGE_LIMIT = 200;
const LOADED_MAX = 10_000;
const SETTLE_MS = 120; // a slider that moves asks when it rests
const LIVE_MS = 300;

page({ name: "state", title: "State", nav: "State", order: 30, allowed: () => maySomewhere("read"), render });

async function render({ root, path, query, signal, title }) {
  if (!path) return choose(root, signal);
  title(`State of ${pathText(path)}`);
  const view = new StateView({ root, path, query, signal });
  await view.start();
}

/** The page without a stream: which ones have state. */
async function choose(root, signal) {
  root.append(h("div.page-head", h("h1", "State")));
  const input = field("Stream", {
    name: "path",
    required: true,
    placeholder: "shop/users",
    hint: "Any JSON stream of state events; declared ones are listed below.",
  });
  const form = h("form.controls", input, h("button.primary", { type: "submit" }, "Show state"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const path = canonicalPath(form.elements.path.value.trim());
    if (path) navigate("state", path);
  });
  root.append(form);
  if (!maySomewhere("list")) return void root.append(notAllowed("list streams", "list:**"));
  const columns = [
    {
      key: "path",
      title: "Stream",
      sortable: true,
      cell: (row) => h("a", { href: link("state", row.path) }, pathText(row.path)),
    },
    { key: "types", title: "Types", cell: (row) => row.types.join(", ") || h("span.dim", "any") },
    { key: "version", title: "Schema version", numeric: true, wide: true, cell: (row) => whole(row.version) },
    {
      key: "table",
      title: "Table",
      wide: true,
      cell: (row) => row.table && h("a", { href: link("tables", row.path) }, "table"),
    },
  ];
  const rows = [];
  let isLoaded = false;
  const list = table({
    caption: "Declared state streams",
    columns,
    empty: () =>
      !isLoaded
        ? "Loading …"
        : emptyView(
            "No declared streams",
            h(
              "span",
              "Declare a JSON stream with ",
              h("code", "penstock schema set STREAM FILE"),
              ": the server then checks its events and keeps an index of its state.",
            ),
          ),
  });
  root.append(list.element);
  for await (const listing of pages("v1/schema", {}, { signal })) {
    rows.push(...listing.streams);
    isLoaded = listing.next === null;
    list.update(rows);
    if (rows.length >= LOADED_MAX) break;
  }
}

class StateView {
  constructor({ root, path, query, signal }) {
    this.path = path;
    this.signal = signal;
    this.root = root;
    this.type = query.get("type") ?? "";
    this.key = query.get("key");
    this.wanted = query.get("offset");
    this.isLive = this.wanted === null;
    this.loads = new AbortController();
    this.rows = [];
    this.types = new Set();
    this.badges = h("span");
    this.problem = h("div");
    this.status = h("p.dim", { role: "status" }, "Loading …");
    this.entity = h("div");
  }

  async start() {
    const head = h(
      "div.page-head",
      h("h1", "State of ", pathText(this.path)),
      this.badges,
      h("a.button", { href: link("stream", this.path) }, "Stream"),
    );
    const panels = [
      ["rows", "Rows", (panel) => this.drawRows(panel)],
      ["schema", "Schema", (panel) => this.drawSchema(panel)],
    ];
    this.root.append(head, this.problem, tabs("Parts of the state", panels));
    await this.loadStops();
    if (this.signal.aborted || !this.stops) return;
    if (this.wanted) this.go(this.wanted);
    else this.goLive();
    await this.followTail();
  }

  drawRows(panel) {
    this.slider = h("input.grow", {
      type: "range",
      min: 0,
      max: 0,
      value: 0,
      step: 1,
      "aria-label": "Point of the stream",
      disabled: true,
    });
    this.slider.addEventListener("input", () => this.slid());
    this.back = h(
      "button",
      { type: "button", onclick: () => this.step(-1), "aria-label": "One message back", disabled: true },
      "◀",
    );
    this.forward = h(
      "button",
      { type: "button", onclick: () => this.step(1), "aria-label": "One message forward", disabled: true },
      "▶",
    );
    this.live = h(
      "button",
      { type: "button", onclick: () => this.goLive(), "aria-pressed": String(this.isLive) },
      "Live",
    );
    this.where = h("p.dim", { role: "status" });
    this.cause = h("div");
    this.typeSelect = select({ "aria-label": "Type" }, [["", "All types"]]);
    this.typeSelect.addEventListener("change", () => this.changeType());
    this.search = h("input.grow", {
      type: "search",
      placeholder: "Filter by key or value",
      "aria-label": "Filter by key or value",
      autocomplete: "off",
      spellcheck: "false",
    });
    this.search.addEventListener("input", () => this.show());
    this.table = table({ caption: "Entities", columns: this.columns(), empty: () => this.empty() });
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.loadMore() }, "Load more");
    const scrub = h(
      "div.card.scrub",
      h("div.controls", this.back, this.slider, this.forward, this.live),
      this.where,
      this.cause,
    );
    append(panel, [
      scrub,
      h("div.controls", this.typeSelect, this.search, this.status),
      this.entity,
      this.table.element,
      this.more,
    ]);
  }

  columns() {
    return [
      { key: "type", title: "Type", sortable: true, cell: (row) => row.type },
      {
        key: "key",
        title: "Key",
        sortable: true,
        cell: (row) =>
          h(
            "button.link",
            { type: "button", onclick: () => this.open(row, true) },
            row.key === "" ? '""' : row.key,
          ),
      },
      { key: "text", title: "Value", cell: (row) => h("code.value-preview", preview(row.text, 200)) },
    ];
  }

  async drawSchema(panel) {
    try {
      const response = await send(url(`v1/schema/${this.path}`), { signal: this.signal });
      const text = await response.text();
      const { version, mode, offset } = JSON.parse(text);
      fill(
        panel,
        h(
          "p.dim",
          `Version ${version}; events that do not match are ${mode === "reject" ? "refused" : "counted and logged"}. In force from offset ${offset}.`,
        ),
        jsonView(text, { open: 6 }),
      );
    } catch (error) {
      if (isAbort(error)) return;
      if (error.code === "schema-not-found")
        fill(
          panel,
          emptyView(
            "Not declared",
            h(
              "span",
              "The server checks nothing in this stream, and folds it for each request. Declare it with ",
              h("code", `penstock schema set ${pathText(this.path)} FILE`),
              ".",
            ),
          ),
        );
      else fill(panel, errorView(error));
    }
  }

  async loadStops() {
    try {
      const { stops, isExact } = await loadStops(this.path, this.signal);
      [this.stops, this.isExact] = [stops, isExact];
      this.slider.max = stops.length - 1;
      this.slider.disabled = stops.length < 2;
      fill(this.problem);
    } catch (error) {
      if (isAbort(error)) return;
      fill(
        this.problem,
        errorView(error, () => this.restart()),
      );
      this.status.textContent = "";
    }
  }

  restart() {
    this.loadStops().then(() => this.stops && this.goLive());
  }

  get tail() {
    return this.stops.at(-1);
  }

  /** Follow the stream; the end of the slider moves with its tail, and so does a live view. */
  async followTail() {
    let timer = null;
    const moved = async () => {
      timer = null;
      while (!this.signal.aborted) {
        const more = await eventsAfter(this.path, this.tail, {}, this.signal).catch(() => []);
        if (more.length === 0) break;
        if (this.isExact) this.stops.push(...more);
        else this.stops[this.stops.length - 1] = more.at(-1);
      }
      this.slider.max = this.stops.length - 1;
      this.slider.disabled = this.stops.length < 2;
      if (this.isLive) this.goLive();
      else this.showWhere();
    };
    await follow(this.path, {
      offset: this.tail.offset,
      signal: this.signal,
      onBatch: () => {
        timer ??= setTimeout(moved, LIVE_MS);
      },
    });
  }

  slid() {
    const stop = this.stops[Number(this.slider.value)];
    if (stop === this.tail) return this.goLive();
    this.isLive = false;
    this.move(stop);
  }

  goLive() {
    this.isLive = true;
    this.move(this.tail);
  }

  /** Go to an offset that need not be a stop of the slider. */
  async go(offset) {
    this.isLive = false;
    const stop = this.stops.find((each) => each.offset === offset);
    if (stop) return this.move(stop);
    const before = this.stops.findLast((each) => each.offset < offset) ?? this.stops[0];
    try {
      const events = await eventsAfter(this.path, before, { until: offset }, this.signal);
      this.move(events.find((each) => each.offset === offset) ?? before);
    } catch (error) {
      if (!isAbort(error)) fill(this.problem, errorView(error));
    }
  }

  async step(by) {
    const at = this.stops.indexOf(this.point);
    let next = at >= 0 && this.isExact ? this.stops[at + by] : null;
    try {
      if (!next && by > 0 && this.point !== this.tail)
        next = (await eventsAfter(this.path, this.point, { count: 1 }, this.signal))[0];
      if (!next && by < 0) next = await stopBefore(this.path, this.stops, this.point, this.signal);
    } catch (error) {
      if (!isAbort(error)) fill(this.problem, errorView(error));
      return;
    }
    if (!next) return;
    this.isLive = next.offset === this.tail.offset;
    this.move(this.isLive ? this.tail : next);
  }

  move(point) {
    this.point = point;
    const nearest = this.stops.findLastIndex((each) => each.ordinal <= point.ordinal);
    this.slider.value = nearest;
    this.slider.setAttribute("aria-valuetext", `after ${count(point.ordinal, "message")}`);
    this.live.setAttribute("aria-pressed", String(this.isLive));
    this.remember();
    this.showWhere();
    this.load();
  }

  showWhere() {
    const { point, tail } = this;
    const first = this.stops[0];
    const trimmed = first.ordinal > 0 ? ` The first ${count(first.ordinal, "message")} were trimmed.` : "";
    this.where.textContent = `After ${whole(point.ordinal)} of ${count(tail.ordinal, "message")}, offset ${point.offset}.${trimmed}`;
    this.back.disabled = point.ordinal <= first.ordinal;
    this.forward.disabled = point.ordinal >= tail.ordinal;
    fill(this.cause, point.text && causeOf(point.text));
  }

  remember() {
    replaceQuery({ offset: this.isLive ? null : this.point.offset, type: this.type, key: this.key });
  }

  changeType() {
    this.type = this.typeSelect.value;
    this.remember();
    this.load();
  }

  async load() {
    this.loads.abort();
    this.loads = new AbortController();
    const signal = AbortSignal.any([this.signal, this.loads.signal]);
    try {
      await sleep(this.isLive ? 0 : SETTLE_MS, signal);
      const { rows, next } = await this.fetch(null, signal);
      this.rows = rows;
      this.next = next;
      fill(this.problem);
      this.show();
      if (this.key !== null)
        this.open({
          type: this.keyType || this.type || rows.find((row) => row.key === this.key)?.type,
          key: this.key,
        });
    } catch (error) {
      if (isAbort(error)) return;
      fill(
        this.problem,
        errorView(error, () => this.load()),
      );
      this.status.textContent = "";
    }
  }

  async loadMore() {
    const signal = this.loads.signal;
    try {
      const { rows, next } = await this.fetch(this.next, signal);
      this.rows = [...this.rows, ...rows];
      this.next = next;
      this.show();
    } catch (error) {
      if (!isAbort(error)) fill(this.problem, errorView(error));
    }
  }

  async fetch(after, signal) {
    const query = { offset: this.point.offset, type: this.type, limit: PAGE_LIMIT, after };
    const response = await send(url(`v1/state/${this.path}`, query), { signal });
    const { types, next } = parse(await response.text());
    const rows = Object.entries(types).flatMap(([type, entities]) =>
      Object.entries(entities).map(([key, value]) => ({ type, key, text: JSON.stringify(value) })),
    );
    return { rows, next };
  }

  show() {
    if (this.signal.aborted) return;
    for (const { type } of this.rows) if (!this.types.has(type)) this.addType(type);
    if (this.type && !this.types.has(this.type)) this.addType(this.type);
    this.typeSelect.value = this.type;
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = words.length
      ? this.rows.filter((row) =>
          words.every(
            (word) => row.key.toLowerCase().includes(word) || row.text.toLowerCase().includes(word),
          ),
        )
      : this.rows;
    this.table.update(rows);
    const loaded =
      this.next === null
        ? count(this.rows.length, "entity", "entities")
        : `the first ${whole(this.rows.length)} entities`;
    this.status.textContent = words.length ? `${whole(rows.length)} of ${loaded}` : loaded;
    this.more.hidden = this.next === null;
    fill(this.badges, this.isLive ? badge("live", "good") : badge("in the past", "warn"));
  }

  addType(type) {
    this.types.add(type);
    append(this.typeSelect, h("option", { value: type }, type));
  }

  empty() {
    if (!this.point) return "Loading …";
    if (this.rows.length > 0) return "No loaded entity contains this text.";
    if (this.point.ordinal === this.stops[0].ordinal && this.tail.ordinal > this.point.ordinal)
      return "At the start of the stream there is no entity yet.";
    return emptyView(
      "No entities",
      h(
        "span",
        "Append state events, such as ",
        h("code", '{"type": "user", "key": "1", "value": {}, "headers": {"operation": "upsert"}}'),
        ".",
      ),
    );
  }

  open({ type, key }, focus = false) {
    if (type === undefined) return;
    [this.key, this.keyType] = [key, type];
    this.remember();
    const close = () => {
      this.key = null;
      this.remember();
      fill(this.entity);
    };
    drawEntity({
      root: this.entity,
      path: this.path,
      type,
      key,
      offset: this.point.offset,
      signal: this.signal,
      onOffset: (offset) => this.go(offset),
      onClose: close,
      focus,
    });
  }
}

/** What the last message before the point was. */
function causeOf(text) {
  let event;
  try {
    event = JSON.parse(text);
  } catch {
    return null;
  }
  const { operation, control } = event?.headers ?? {};
  if (control) return h("p", badge(String(control), "warn"), " a control event");
  if (!operation) return h("p", badge("no event"), " ", h("code", preview(text, 120)));
  return h(
    "p",
    "Last change: ",
    badge(String(operation), operation === "delete" ? "bad" : "accent"),
    " ",
    String(event.type),
    " ",
    h("code", String(event.key)),
  );
}
