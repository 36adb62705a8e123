// Streams: all that the principal may list, as a list or as a tree of paths; and creating one.

import { append, fill, h } from "../lib/dom.js";
import { get, isAbort, pages, poll, send, sleep, streamUrl } from "../lib/api.js";
import { ago, bytes, canonicalPath, count, pathText, rate, time, whole } from "../lib/format.js";
import { link, navigate, page, replaceQuery } from "../lib/pages.js";
import { may, maySomewhere } from "../lib/session.js";
import { ask, field, select } from "../lib/dialog.js";
import { table } from "../lib/table.js";
import { badge, emptyView, errorView, notAllowed } from "../lib/views.js";

const LOADED_MAX = 20_000;
const PAGE_LIMIT = 1000;
const FIND_MS = 250; // between a key and the request that it leads to
const RATES_MS = 5_000;
const FIRST_RATES_MS = 1_200; // the server begins to count when it is first asked

// Which folders of the tree were opened and closed by hand; it stays so while the reader looks at a stream.
const open = new Map();

page({ name: "streams", title: "Streams", nav: "Streams", order: 20, render });

async function render({ root, query, signal }) {
  const create = h(
    "button.primary",
    {
      type: "button",
      onclick: () => createStream(signal),
      disabled: !maySomewhere("create"),
      title: maySomewhere("create") ? null : "Your token may create no stream.",
    },
    "Create stream",
  );
  root.append(h("div.page-head", h("h1", "Streams"), create));
  if (!maySomewhere("list")) {
    root.append(notAllowed("list streams", "list:**"));
    return;
  }
  const view = new StreamsView({ root, query, signal });
  await Promise.all([view.load(), view.followRates()]);
}

class StreamsView {
  constructor({ root, query, signal }) {
    this.signal = signal;
    this.entries = [];
    this.rates = new Map();
    this.mode = query.get("view") === "tree" ? "tree" : "list";
    this.sort = sortOf(query.get("sort"));
    this.search = h("input.grow", {
      type: "search",
      value: query.get("q") ?? "",
      placeholder: "Filter by path",
      "aria-label": "Filter by path",
      autocomplete: "off",
      spellcheck: "false",
    });
    this.search.addEventListener("input", () => this.changed());
    this.refresh = h("button", { type: "button", onclick: () => this.load() }, "Refresh");
    this.modes = ["list", "tree"].map((mode) =>
      h(
        "button",
        { type: "button", "data-mode": mode, onclick: () => this.choose(mode) },
        mode === "list" ? "List" : "Tree",
      ),
    );
    this.status = h("p.dim", { role: "status" }, "Loading …");
    this.problem = h("div");
    this.body = h("div");
    this.table = table({
      caption: "Streams",
      columns: this.columns(),
      sort: this.sort,
      empty: () => this.empty(),
      onSort: (sort) => {
        this.sort = sort;
        this.remember();
      },
    });
    append(root, [
      h(
        "div.controls",
        this.search,
        h("div.segmented", { role: "group", "aria-label": "View" }, this.modes),
        this.refresh,
        this.status,
      ),
      this.problem,
      this.body,
    ]);
    this.show();
  }

  columns() {
    const value = (key) => (row) => row[key];
    return [
      {
        key: "path",
        title: "Path",
        sortable: true,
        value: (row) => row.text,
        cell: (row) => [
          h("a", { href: link("stream", row.path) }, row.text),
          row.closed && [" ", badge("closed")],
          row.forked_from && [" ", badge("fork", "accent")],
        ],
      },
      {
        key: "content_type",
        title: "Type",
        wide: true,
        sortable: true,
        value: value("content_type"),
        cell: (row) => h("span.dim", row.content_type),
      },
      {
        key: "messages",
        title: "Messages",
        numeric: true,
        sortable: true,
        value: value("messages"),
        wide: true,
        cell: (row) => whole(row.messages),
      },
      {
        key: "bytes",
        title: "Size",
        numeric: true,
        sortable: true,
        value: value("bytes"),
        cell: (row) => bytes(row.bytes),
      },
      {
        key: "rate",
        title: "Rate",
        numeric: true,
        sortable: true,
        wide: true,
        value: (row) => this.rates.get(row.path) ?? 0,
        cell: (row) => (this.rates.get(row.path) ? rate(this.rates.get(row.path)) : h("span.dim", "–")),
      },
      {
        key: "touched_at",
        title: "Last write",
        numeric: true,
        sortable: true,
        value: value("touched_at"),
        cell: (row) =>
          h("time", { datetime: row.touched_at, title: time(row.touched_at) }, ago(row.touched_at)),
      },
    ];
  }

  /** Load the listing page by page; what is there is shown meanwhile. */
  async load() {
    this.entries = [];
    this.isLoaded = false;
    this.refresh.disabled = true;
    fill(this.problem);
    try {
      for await (const listing of pages("v1/streams", { limit: PAGE_LIMIT }, { signal: this.signal })) {
        this.add(listing.streams);
        this.isPartial = listing.next !== null;
        this.show();
        if (this.entries.length >= LOADED_MAX) break;
        // Between two pages the browser may draw, and react.
        await sleep(0, this.signal);
      }
    } catch (error) {
      if (isAbort(error)) return;
      fill(this.problem, errorView(error));
    }
    this.isLoaded = true;
    this.refresh.disabled = false;
    this.show();
    if (this.isPartial && this.search.value) await this.find();
  }

  add(streams) {
    for (const entry of streams) {
      const text = pathText(entry.path);
      this.entries.push({ ...entry, text, lower: text.toLowerCase() });
    }
  }

  /** Ask the server for paths that begin with what is typed, where not all of them were loaded. */
  async find() {
    this.finding?.abort();
    this.finding = new AbortController();
    const signal = AbortSignal.any([this.signal, this.finding.signal]);
    try {
      await sleep(FIND_MS, signal);
      const { streams } = await get(
        "v1/streams",
        { prefix: canonicalPath(this.search.value), limit: PAGE_LIMIT },
        { signal },
      );
      const known = new Set(this.entries.map((entry) => entry.path));
      this.add(streams.filter((entry) => !known.has(entry.path)));
      this.show();
    } catch (error) {
      if (!isAbort(error)) fill(this.problem, errorView(error));
    }
  }

  async followRates() {
    if (!may("read", "__ds/metrics")) return;
    const look = async () => {
      try {
        const query = { limit: PAGE_LIMIT, since: "9999-01-01T00:00:00Z" };
        const { streams } = await get("v1/activity", query, { signal: this.signal, keepSession: true });
        this.rates = new Map(streams.map((each) => [each.path, each.appends_per_s]));
        if (this.mode === "list") this.show(); // the tree shows no rates
      } catch (error) {
        if (isAbort(error)) throw error;
        // Without activity there are no rates; the rest of the page does not need them.
      }
    };
    await poll(RATES_MS, this.signal, look, FIRST_RATES_MS);
  }

  changed() {
    this.remember();
    this.show();
    if (this.isPartial && this.search.value) this.find();
  }

  choose(mode) {
    this.mode = mode;
    this.remember();
    this.show();
  }

  remember() {
    const sort = this.sort ? `${this.sort.direction < 0 ? "-" : ""}${this.sort.key}` : "";
    replaceQuery({ q: this.search.value, view: this.mode === "tree" ? "tree" : "", sort });
  }

  show() {
    if (this.signal.aborted) return;
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = words.length
      ? this.entries.filter((entry) => words.every((word) => entry.lower.includes(word)))
      : this.entries;
    for (const button of this.modes)
      button.setAttribute("aria-pressed", String(button.dataset.mode === this.mode));
    const shown =
      rows.length === this.entries.length
        ? count(rows.length, "stream")
        : `${whole(rows.length)} of ${count(this.entries.length, "stream")}`;
    const more = this.isLoaded
      ? this.isPartial
        ? `; there are more, which are found by how their paths begin`
        : ""
      : " …";
    this.status.textContent = shown + more;
    if (this.mode === "list") {
      this.table.update(rows);
      if (this.body.firstChild !== this.table.element) fill(this.body, this.table.element);
    } else {
      this.drawTree(rows, words.length > 0);
    }
  }

  empty() {
    if (!this.isLoaded) return "Loading …";
    if (this.entries.length > 0) return "No path contains this text.";
    return emptyView(
      "No streams yet",
      "Create one here, or append to one from a program.",
      h("code", "penstock create hello && penstock append hello '{\"n\": 1}'"),
    );
  }

  drawTree(rows, isFiltered) {
    if (rows.length === 0) return void fill(this.body, h("div.card", this.empty()));
    const focused = document.activeElement?.dataset?.folder;
    const tree = treeOf(rows);
    fill(
      this.body,
      h("ul.tree.card", { "aria-label": "Streams by path" }, this.branches(tree, "", isFiltered)),
    );
    if (focused) this.body.querySelector(`[data-folder="${CSS.escape(focused)}"]`)?.focus();
  }

  branches(node, parent, isFiltered) {
    const items = [];
    for (const [name, child] of [...node.children]
      .sort(([one], [other]) => (one < other ? -1 : 1))
      .slice(0, 500)) {
      const path = parent ? `${parent}/${name}` : name;
      const label = pathText(name);
      const leaf =
        child.entry &&
        h(
          "li.leaf",
          h("a", { href: link("stream", path) }, label),
          h("span.dim.numeric", bytes(child.entry.bytes)),
        );
      if (leaf) items.push(leaf);
      if (child.children.size > 0) {
        const isOpen = open.get(path) ?? ((isFiltered && child.streams <= 50) || node.children.size === 1);
        const toggle = h(
          "button.folder",
          {
            type: "button",
            "aria-expanded": String(isOpen),
            "data-folder": path,
            onclick: () => this.toggle(path, isOpen),
          },
          `${label}/`,
        );
        const below = child.streams - (child.entry ? 1 : 0);
        items.push(
          h(
            "li",
            h(
              "div.branch",
              toggle,
              h(
                "span.dim.numeric",
                `${count(below, "stream")}, ${bytes(child.bytes - (child.entry?.bytes ?? 0))}`,
              ),
            ),
            isOpen && h("ul", this.branches(child, path, isFiltered)),
          ),
        );
      }
    }
    if (node.children.size > 500)
      items.push(h("li.dim", `${whole(node.children.size - 500)} more: filter by path to see them.`));
    return items;
  }

  toggle(path, isOpen) {
    open.set(path, !isOpen);
    this.show();
  }
}

function sortOf(text) {
  if (!text) return { key: "path", direction: 1 };
  return text.startsWith("-") ? { key: text.slice(1), direction: -1 } : { key: text, direction: 1 };
}

/** Return the streams by the segments of their paths: `{children, streams, bytes, entry}`. */
function treeOf(rows) {
  const root = { children: new Map(), streams: 0, bytes: 0, entry: null };
  for (const entry of rows) {
    let node = root;
    for (const segment of entry.path.split("/")) {
      if (!node.children.has(segment))
        node.children.set(segment, { children: new Map(), streams: 0, bytes: 0, entry: null });
      node = node.children.get(segment);
      node.streams += 1;
      node.bytes += entry.bytes;
    }
    node.entry = entry;
  }
  return root;
}

const TYPES = ["application/json", "application/octet-stream", "text/plain", "application/ndjson"];

async function createStream(signal) {
  const type = select({ name: "type" }, [...TYPES, ["", "Other …"]]);
  const other = field("Content type", { name: "other", placeholder: "text/csv" });
  other.hidden = true;
  type.addEventListener("change", () => (other.hidden = type.value !== ""));
  const path = await ask({
    title: "Create a stream",
    confirm: "Create",
    fields: [
      field("Path", {
        name: "path",
        required: true,
        placeholder: "orders/2027",
        hint: "Segments are separated by slashes. Any character may be used.",
      }),
      field("Content type", { control: type }),
      other,
      field("Time to live", {
        name: "ttl",
        inputmode: "numeric",
        pattern: "[0-9]*",
        placeholder: "never expires",
        hint: "Seconds without a use after which the stream is deleted. Empty: it stays.",
      }),
      field("First content", {
        control: h("textarea", { name: "body", rows: 3, placeholder: '[{"id": 1}]' }),
        hint: "Optional. Of a JSON stream one message, or an array of messages.",
      }),
    ],
    action: async (form) => {
      const address = canonicalPath(form.get("path").trim());
      const headers = { "Content-Type": form.get("type") || form.get("other").trim() };
      if (form.get("ttl").trim()) headers["Stream-TTL"] = form.get("ttl").trim();
      const body = form.get("body").trim() ? form.get("body") : undefined;
      const response = await send(streamUrl(address), { method: "PUT", headers, body, signal });
      if (response.status === 200)
        throw new Error("There is a stream at this path already. Choose another path.");
      return address;
    },
  });
  if (path) navigate("stream", path);
}
