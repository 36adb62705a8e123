// JSON as a tree that is opened by hand. What is large is shown in steps, so that a message of any size is one page.

import { h, fill } from "./dom.js";
import { bytes, count } from "./format.js";

const OPEN_DEPTH = 2; // levels that are open at first
const OPEN_CHILDREN_MAX = 50; // an object with more is closed at first
const STEP = 100; // members that are added at a time
const TEXT_MAX = 2_000; // characters of a string that are shown at first

/** A number that JavaScript cannot hold: its text is shown as it was sent. */
export class Exact {
  constructor(source) {
    this.source = source;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.source) : Number(this.source);
  }
}

/** Parse JSON; numbers that would lose digits are kept as they were written. */
export function parse(text) {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== "number" || context?.source === undefined) return value;
    const isPlain = Number.isSafeInteger(value) || (context.source.length <= 15 && Number.isFinite(value));
    return isPlain ? value : new Exact(context.source);
  });
}

/** Return an element that shows the JSON of a text; what is no JSON is shown as text. */
export function jsonView(text, { open = OPEN_DEPTH } = {}) {
  let value;
  try {
    value = parse(text);
  } catch {
    return textView(text);
  }
  return h("div.json", { tabindex: 0, role: "group", "aria-label": "JSON" }, node(null, value, 0, open));
}

/** Return an element that shows text; a long one is shown in steps. */
export function textView(text) {
  const view = h("pre.text", { tabindex: 0 });
  return longText(view, text);
}

function longText(element, text, quote = "") {
  if (text.length <= TEXT_MAX) return fill(element, quote + text + quote);
  let shown = TEXT_MAX;
  const render = () => {
    fill(element, quote + text.slice(0, shown), shown < text.length ? "…" : quote);
    if (shown < text.length) {
      const more = () => {
        shown += 20 * TEXT_MAX;
        render();
      };
      element.append(
        h(
          "button.more",
          { type: "button", onclick: more },
          `${count(text.length - shown, "character")} more`,
        ),
      );
    }
  };
  render();
  return element;
}

function node(name, value, depth, open) {
  const label = name === null ? null : [h("span.key", name), ": "];
  if (value === null || typeof value !== "object" || value instanceof Exact)
    return h("div.leaf", label, scalar(value));
  const isArray = Array.isArray(value);
  const names = isArray ? null : Object.keys(value);
  const size = isArray ? value.length : names.length;
  if (size === 0) return h("div.leaf", label, h("span.punctuation", isArray ? "[]" : "{}"));
  const summary = h(
    "summary",
    label,
    h("span.punctuation", isArray ? "[" : "{"),
    h("span.size", isArray ? count(size, "element") : count(size, "member")),
    h("span.punctuation", isArray ? "]" : "}"),
  );
  const members = h("div.members");
  const details = h("details", summary, members);
  let shown = 0;
  const add = () => {
    const end = Math.min(shown + STEP, size);
    for (; shown < end; shown += 1) {
      const key = isArray ? shown : names[shown];
      members.append(node(String(key), value[key], depth + 1, open));
    }
    if (shown < size) {
      const more = (event) => {
        event.target.remove();
        add();
      };
      members.append(
        h("button.more", { type: "button", onclick: more }, `${count(size - shown, "more", "more")}`),
      );
    }
  };
  // Members are built when they are first seen.
  details.addEventListener("toggle", () => details.open && shown === 0 && add());
  if (depth < open && size <= OPEN_CHILDREN_MAX) {
    details.open = true;
    add();
  }
  return details;
}

function scalar(value) {
  if (value instanceof Exact) return h("span.number", value.source);
  if (typeof value === "string") return longText(h("span.string"), JSON.stringify(value).slice(1, -1), '"');
  return h(`span.${value === null ? "null" : typeof value}`, String(value));
}

/** Return a message on one line, cut to a length. */
export function preview(text, length = 300) {
  return text.length <= length ? text : `${text.slice(0, length)}… (${bytes(new Blob([text]).size)})`;
}
