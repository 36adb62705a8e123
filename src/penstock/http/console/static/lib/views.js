// Parts that every page needs: errors, empty states, notices, badges, values with their names.

import { h, fill } from "./dom.js";
import { Unreachable, url } from "./api.js";

/** Return an element that says what went wrong, and what to do. */
export function errorView(error, retry = null) {
  const title =
    error instanceof Unreachable
      ? "The server does not answer"
      : error.title || (error.status === 403 ? "Not allowed" : "This did not work");
  const code = error.code
    ? h("a.code", { href: url(`problems/${encodeURIComponent(error.code)}`).href }, error.code)
    : null;
  return h(
    "div.notice.error",
    { role: "alert" },
    h("strong", title),
    h("p", error.message || String(error)),
    (code || retry) &&
      h("p.more-about", code, retry && h("button", { type: "button", onclick: retry }, "Try again")),
  );
}

/** Return an element for where there is nothing: what it is, and what to do next. */
export function emptyView(title, text, ...actions) {
  return h("div.empty-state", h("h2", title), h("p", text), actions.length > 0 && h("div.actions", actions));
}

export const notAllowed = (what, rule) =>
  emptyView(
    "Not allowed",
    h(
      "span",
      `Your token may not ${what}. Ask the operator of this server for a token with the rule `,
      h("code", rule),
      ".",
    ),
  );

export const badge = (text, kind = "") => h("span.badge", { class: kind || null }, text);

/** Return a list of names and values, with a class if they have one (`long` takes two columns); null ones are left out. */
export function facts(entries) {
  return h(
    "dl.facts",
    entries
      .filter(([, value]) => value !== null && value !== undefined && value !== false)
      .map(([name, value, kind]) => h("div", { class: kind }, h("dt", name), h("dd", value))),
  );
}

/** A button that copies a text, and says so. */
export function copyButton(text, label = "Copy") {
  const button = h("button.copy", { type: "button" }, label);
  button.addEventListener("click", async () => {
    fill(button, (await copied(text)) ? "Copied" : "Not copied");
    setTimeout(() => fill(button, label), 1500);
  });
  return button;
}

/** Copy a text; returns whether that worked. */
async function copied(text) {
  if (navigator.clipboard)
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  // Browsers have no clipboard for pages that came over http from another machine.
  const area = h("textarea.hidden", { value: text, "aria-hidden": true, tabindex: -1 });
  const focused = document.activeElement;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return isCopied;
}

let toastTimer;
/** Say that something was done. */
export function toast(text) {
  const region = document.getElementById("toast");
  fill(region, text);
  region.classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => region.classList.remove("shown"), 4000);
}

/** Tabs: `items` are [id, title, render(panel)]; the chosen panel is rendered when it is first shown. */
export function tabs(label, items, { selected = items[0][0], onSelect = () => {} } = {}) {
  const panels = new Map();
  const buttons = items.map(([id, title]) =>
    h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${id}`,
        "aria-controls": `panel-${id}`,
        onclick: () => choose(id),
      },
      title,
    ),
  );
  const list = h("div.tabs", { role: "tablist", "aria-label": label }, buttons);
  const holder = h("div");
  for (const [id] of items) {
    const panel = h("div.panel", {
      role: "tabpanel",
      id: `panel-${id}`,
      "aria-labelledby": `tab-${id}`,
      hidden: true,
    });
    panels.set(id, panel);
    holder.append(panel);
  }
  const rendered = new Set();
  function choose(id, focus = false) {
    items.forEach(([each], at) => {
      const isChosen = each === id;
      buttons[at].setAttribute("aria-selected", String(isChosen));
      buttons[at].tabIndex = isChosen ? 0 : -1;
      panels.get(each).hidden = !isChosen;
      if (isChosen && focus) buttons[at].focus();
    });
    if (!rendered.has(id)) {
      rendered.add(id);
      items.find(([each]) => each === id)[2](panels.get(id));
    }
    onSelect(id);
  }
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = buttons.findIndex((button) => button.getAttribute("aria-selected") === "true");
    choose(items[(at + step + items.length) % items.length][0], true);
  });
  choose(items.some(([id]) => id === selected) ? selected : items[0][0]);
  return h("div.tabbed", list, holder);
}
