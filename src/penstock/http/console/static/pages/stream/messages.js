// The messages of a stream: live with a pause, or page by page from an offset or a time.

import { append, fill, h } from "../../lib/dom.js";
import { isAbort, send, streamUrl } from "../../lib/api.js";
import { bytes, count, whole } from "../../lib/format.js";
import { replaceQuery } from "../../lib/pages.js";
import { select } from "../../lib/dialog.js";
import { byteLength, follow, messagesOf, withOffsets } from "../../lib/live.js";
import { jsonView, preview, textView } from "../../lib/json.js";
import { badge, copyButton, errorView } from "../../lib/views.js";

const DRAWN_MAX = 300; // rows in the page
const HELD_MAX = 2_000; // messages in memory, for the filter
const HELD_CHARACTERS_MAX = 16_000_000;
const QUEUED_MAX = 4_000; // messages that wait to be drawn before no more are read
const BEHIND_BYTES = 1_000_000; // how far behind a live list offers to skip
const PAGE_COUNT = 100;
const TAIL = 50;
const DRAW_MS = 60;

const STARTS = [
  ["tail", "Live, after the last"],
  ["first", "From the start"],
  ["offset", "From an offset"],
  ["at", "From a time"],
];

/** Draw the messages into an element. `stream` is what the page knows of it; its `tail` moves. */
export function messages({ root, stream, query, signal }) {
  new Messages(root, stream, query, signal);
}

class Messages {
  constructor(root, stream, query, signal) {
    Object.assign(this, {
      stream,
      signal,
      held: [],
      characters: 0,
      queue: [],
      missed: 0,
      isPaused: false,
      number: 0,
    });
    this.start = select(
      { "aria-label": "Where to begin" },
      STARTS,
      STARTS.find(([name]) => query.has(name))?.[0] ?? "tail",
    );
    this.value = h("input", {
      type: "text",
      "aria-label": "Value",
      autocomplete: "off",
      spellcheck: "false",
      value: query.get(this.start.value) ?? "",
    });
    this.filter = h("input.grow", {
      type: "search",
      placeholder: "Filter what is shown",
      "aria-label": "Filter what is shown",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.redraw(),
    });
    this.type = h("input", {
      type: "text",
      "aria-label": "Type of the events",
      placeholder: "type (state)",
      autocomplete: "off",
      value: query.get("type") ?? "",
    });
    this.key = h("input", {
      type: "text",
      "aria-label": "Key of the events",
      placeholder: "key (state)",
      autocomplete: "off",
      value: query.get("key") ?? "",
    });
    this.pause = h("button", { type: "button", onclick: () => this.setPaused(!this.isPaused) }, "Pause");
    this.state = h("span", { role: "status" });
    this.skip = h(
      "button",
      { type: "button", hidden: true, onclick: () => this.begin() },
      "Behind: skip to the newest",
    );
    this.missedNote = h("button.missed", {
      type: "button",
      hidden: true,
      onclick: () => this.setPaused(false),
    });
    this.list = h("ol.rows", { "aria-label": "Messages", tabindex: 0 });
    this.foot = h("div.rows-foot");
    this.problem = h("div");
    const go = h(
      "form.controls",
      h("span.start", this.start, this.value),
      stream.isJson && h("span.start", this.type, this.key),
      h("button", { type: "submit" }, "Go"),
    );
    go.addEventListener("submit", (event) => {
      event.preventDefault();
      this.begin();
    });
    this.start.addEventListener("change", () => {
      this.value.value = "";
      this.showValue();
      if (["tail", "first"].includes(this.start.value)) this.begin();
      else this.value.focus();
    });
    for (const name of ["wheel", "touchmove", "keydown"])
      this.list.addEventListener(name, () => this.scrolled(), { passive: true });
    append(root, [
      go,
      h("div.controls", this.filter, this.pause, this.skip, this.state),
      this.problem,
      h("div.rows-holder", this.list, this.missedNote),
      this.foot,
    ]);
    this.showValue();
    this.begin();
  }

  showValue() {
    const texts = {
      tail: [`${TAIL} messages`, "Number of messages before the live ones"],
      offset: ["0000000000000001_0000000000000000", "Offset"],
      at: ["2027-01-15T08:00:00Z", "Time"],
    };
    const [placeholder, label] = texts[this.start.value] ?? ["", "Value"];
    const isCounted = this.stream.isJson || this.stream.isText;
    this.value.hidden = this.start.value === "first" || (this.start.value === "tail" && !isCounted);
    this.value.placeholder = placeholder;
    this.value.setAttribute("aria-label", label);
  }

  /** Read from where the controls say. */
  begin() {
    this.reading?.abort();
    this.reading = new AbortController();
    const reading = AbortSignal.any([this.signal, this.reading.signal]);
    Object.assign(this, { held: [], characters: 0, queue: [], missed: 0, number: 0 });
    for (const part of [this.list, this.foot, this.problem, this.state]) fill(part);
    delete this.list.dataset.state;
    this.skip.hidden = true;
    this.setPaused(false);
    const name = this.start.value;
    const value = this.value.value.trim();
    replaceQuery({ [name]: name === "first" ? "1" : value, type: this.type.value, key: this.key.value });
    const isLive = name === "tail";
    this.pause.hidden = !isLive;
    try {
      if (isLive) this.follow({ start: this.tailStart(value), reading });
      else this.page({ start: this.pageStart(name, value), reading });
    } catch (error) {
      fill(this.problem, errorView(error));
    }
  }

  tailStart(value) {
    if (!this.stream.isJson && !this.stream.isText) return { offset: "now" };
    if (value && !/^\d+$/.test(value)) throw new Error("Write a number of messages, such as 50.");
    return { tail: value || String(TAIL) };
  }

  pageStart(name, value) {
    if (name === "first") return { offset: "-1" };
    if (name === "offset") {
      if (!value) throw new Error("Write an offset, as it is shown beside a message.");
      return { offset: value };
    }
    const time = new Date(/^\d+$/.test(value) ? Number(value) : value);
    if (Number.isNaN(time.getTime())) throw new Error("Write a time, such as 2027-01-15T08:00:00Z.");
    // Without a zone the time is that of this machine; the server wants to be told.
    return { at: /^\d+$/.test(value) || /(z|[+-]\d\d:?\d\d)$/i.test(value) ? value : time.toISOString() };
  }

  stateFilter() {
    return { type: this.type.value, key: this.key.value };
  }

  // Live

  follow({ start, reading }) {
    const states = {
      connecting: ["connecting …", ""],
      live: ["live", "good"],
      "catching-up": ["catching up …", "accent"],
      closed: ["closed", ""],
      ended: ["ended", "bad"],
    };
    follow(this.stream.path, {
      start,
      query: this.stateFilter(),
      signal: reading,
      onBatch: (batch) => this.received(batch, reading),
      onState: (state, detail) => {
        if (reading.aborted || (state === this.list.dataset.state && state !== "waiting")) return;
        this.list.dataset.state = state;
        if (state === "waiting")
          fill(this.state, badge(`reconnecting in ${Math.ceil(detail.seconds)} s`, "warn"));
        else fill(this.state, badge(...states[state]));
        if (state === "live") fill(this.problem);
        if (state === "ended")
          fill(
            this.problem,
            errorView(detail, () => this.begin()),
          );
        if (state === "closed" || state === "live")
          this.note(
            reading,
            state === "closed"
              ? "The stream is closed: no more messages will come."
              : "No messages yet. New ones appear here as they are appended.",
          );
      },
    });
  }

  /** More may come than can be shown: whoever wants the newest need not wait for the rest. */
  showBehind(offset) {
    this.skip.hidden = position(this.stream.tail) - position(offset) < BEHIND_BYTES;
  }

  note(reading, text) {
    if (!reading.aborted && this.number === 0) fill(this.foot, h("p.dim", text));
  }

  /** Take a batch; the promise is kept when enough of it is drawn for more to be read. */
  async received(batch, reading) {
    if (reading.aborted) return;
    this.showBehind(batch.offset);
    for (const message of this.split(batch)) this.hold(message);
    if (this.isPaused) return this.showMissed();
    this.scheduleDraw(reading);
    while (this.queue.length > QUEUED_MAX && !reading.aborted && !this.isPaused)
      await new Promise((done) => setTimeout(done, DRAW_MS));
  }

  split({ data, before, offset, encoding }) {
    if (this.stream.isJson) return this.placed(messagesOf(data), before, offset);
    return [
      { text: encoding === "base64" ? atob(data) : data, offset: before, isBinary: encoding === "base64" },
    ];
  }

  /** Return messages with their offsets; where others were left out between them, nobody knows these. */
  placed(texts, before, after) {
    const isFiltered = this.type.value !== "" || this.key.value !== "";
    return withOffsets(texts, isFiltered ? null : before, after);
  }

  /** Remember a message, and forget the oldest ones beyond what memory is for. */
  hold(message) {
    message.number = ++this.number;
    this.held.push(message);
    this.characters += message.text.length;
    while (this.held.length > HELD_MAX || (this.characters > HELD_CHARACTERS_MAX && this.held.length > 1))
      this.characters -= this.held.shift().text.length;
    if (this.isPaused) this.missed += 1;
    else this.queue.push(message);
  }

  scheduleDraw(reading) {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      if (reading.aborted || this.isPaused) return;
      const rows = this.queue
        .splice(0)
        .filter((message) => this.matches(message))
        .slice(-DRAWN_MAX);
      if (rows.length === 0) return;
      fill(this.foot);
      this.list.append(...rows.map((message) => this.row(message)));
      while (this.list.children.length > DRAWN_MAX) this.list.firstChild.remove();
      this.list.scrollTop = this.list.scrollHeight;
    }, DRAW_MS);
  }

  setPaused(isPaused) {
    const wasPaused = this.isPaused;
    this.isPaused = isPaused;
    fill(this.pause, isPaused ? "Resume" : "Pause");
    this.pause.setAttribute("aria-pressed", String(isPaused));
    this.missedNote.hidden = true;
    if (wasPaused && !isPaused) {
      this.missed = 0;
      this.redraw();
      this.list.scrollTop = this.list.scrollHeight;
    }
  }

  showMissed() {
    this.missedNote.hidden = false;
    fill(this.missedNote, `${count(this.missed, "new message")} while paused`);
  }

  /** Whoever scrolls up wants to read: what is there must not move. */
  scrolled() {
    requestAnimationFrame(() => {
      const isAtEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 60;
      if (
        !isAtEnd &&
        this.start.value === "tail" &&
        !this.isPaused &&
        this.list.scrollHeight > this.list.clientHeight
      )
        this.setPaused(true);
    });
  }

  // Page by page

  async page({ start, reading }) {
    fill(this.state, badge("reading …"));
    try {
      const counted = this.stream.isJson ? { count: String(PAGE_COUNT) } : {};
      const response = await send(
        streamUrl(this.stream.path, { ...start, ...counted, ...this.stateFilter() }),
        { signal: reading },
      );
      const next = response.headers.get("stream-next-offset");
      const before =
        response.headers.get("stream-start-offset") ??
        (start.offset === "-1" ? this.stream.earliest : start.offset);
      const isAtTail = response.headers.get("stream-up-to-date") === "true";
      const texts = this.stream.isJson
        ? this.placed(messagesOf(await response.text()), before, next)
        : await this.chunk(response, before);
      if (reading.aborted) return;
      for (const message of texts) this.hold(message);
      this.queue = [];
      this.list.append(
        ...texts.filter((message) => this.matches(message)).map((message) => this.row(message)),
      );
      while (this.list.children.length > 10 * DRAWN_MAX) this.list.firstChild.remove();
      fill(
        this.state,
        badge(isAtTail ? "at the tail" : `${count(this.number, "message")} read`, isAtTail ? "good" : ""),
      );
      const more = h(
        "button",
        { type: "button", onclick: () => this.page({ start: { offset: next }, reading }) },
        isAtTail ? "Look for new messages" : "Read on",
      );
      const live = h("button", { type: "button", onclick: () => this.goLive(next) }, "Follow live");
      fill(
        this.foot,
        this.number === 0 && isAtTail && h("p.dim", "There are no messages here."),
        h("div.actions", more, live),
      );
    } catch (error) {
      if (isAbort(error) || reading.aborted) return;
      fill(this.state);
      fill(
        this.problem,
        errorView(error, () => this.page({ start, reading })),
      );
    }
  }

  async chunk(response, before) {
    const data = new Uint8Array(await response.arrayBuffer());
    if (data.length === 0) return [];
    if (this.stream.isText) return [{ text: new TextDecoder().decode(data), offset: before }];
    let text = "";
    for (let at = 0; at < data.length; at += 8192)
      text += String.fromCharCode(...data.subarray(at, at + 8192));
    return [{ text, offset: before, isBinary: true }];
  }

  /** Go on live from where the pages ended. */
  goLive(offset) {
    this.start.value = "tail";
    this.value.value = "";
    this.showValue();
    this.pause.hidden = false;
    fill(this.foot);
    this.follow({ start: { offset }, reading: AbortSignal.any([this.signal, this.reading.signal]) });
  }

  // Rows

  matches(message) {
    const text = this.filter.value.toLowerCase();
    return text === "" || message.text.toLowerCase().includes(text);
  }

  redraw() {
    this.queue = [];
    const rows = this.held.filter((message) => this.matches(message));
    fill(
      this.list,
      rows.slice(-DRAWN_MAX).map((message) => this.row(message)),
    );
    const isFiltered = this.filter.value !== "";
    fill(
      this.foot,
      isFiltered &&
        h(
          "p.dim",
          { role: "status" },
          `${count(rows.length, "message")} of ${whole(this.held.length)} contain this text.`,
        ),
    );
  }

  row(message) {
    const size = message.isBinary ? message.text.length : byteLength(message.text);
    const summary = h(
      "summary",
      h(
        "span.offset",
        { title: message.offset ? "The offset of this message" : "" },
        message.offset ? String(position(message.offset)) : "·",
      ),
      h("span.line", message.isBinary ? hex(message.text.slice(0, 32)) : preview(message.text)),
      h("span.size", bytes(size)),
    );
    const details = h("details", summary);
    details.addEventListener("toggle", () => {
      // What somebody reads must not be pushed away by what comes.
      if (details.open && this.start.value === "tail") this.setPaused(true);
      if (!details.open || details.children.length > 1) return;
      const view = message.isBinary
        ? textView(dump(message.text))
        : this.stream.isJson
          ? jsonView(message.text)
          : textView(message.text);
      details.append(
        h(
          "div.message",
          view,
          h(
            "div.actions",
            !message.isBinary && copyButton(message.text, "Copy message"),
            message.offset && copyButton(message.offset, "Copy offset"),
            message.offset && h("code.dim", message.offset),
          ),
        ),
      );
    });
    return h("li", details);
  }
}

/** The part of an offset that tells messages apart. */
const position = (offset) => Number(offset?.split("_")[1]);

const hex = (text) => [...text].map((each) => each.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");

function dump(text) {
  const lines = [];
  for (let at = 0; at < Math.min(text.length, 65536); at += 16) {
    const part = text.slice(at, at + 16);
    lines.push(
      `${at.toString(16).padStart(8, "0")}  ${hex(part).padEnd(47)}  ${part.replace(/[^\x20-\x7e]/g, ".")}`,
    );
  }
  if (text.length > 65536) lines.push(`… ${bytes(text.length - 65536)} more`);
  return lines.join("\n");
}
