// The registry of pages, and which of them an address shows. Addresses are `#/name/rest?query`.

import { fill, h } from "./dom.js";
import { isAbort } from "./api.js";
import { errorView, emptyView } from "./views.js";

const pages = new Map();

/**
 * Register a page: `{name, title, nav, order, allowed(), render(view)}`.
 *
 * `nav` is its entry in the navigation (pages without one are reached by links), `allowed` says whether the entry is
 * shown. `render` gets `{root, path, query, signal, title(text)}`: the element to fill, what follows the name in the
 * address, its parameters, and a signal that aborts when the page is left. It may be async; what it throws is shown.
 */
export function page(definition) {
  pages.set(definition.name, definition);
}

export const navigation = () =>
  [...pages.values()]
    .filter((each) => each.nav && (each.allowed?.() ?? true))
    .sort((one, other) => (one.order ?? 100) - (other.order ?? 100));

/** Return the address of a page; `path` is canonical, as paths of streams are. */
export function link(name, path = "", query = {}) {
  const parameters = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
  const text = parameters.toString();
  return `#/${name}${path && `/${path}`}${text && `?${text}`}`;
}

export const navigate = (...address) => (location.hash = link(...address));

/** Change the parameters in the address without a new entry in the history, and without drawing the page again. */
export function replaceQuery(query) {
  const { name, path } = current();
  // The address may be that of the next page already, which is about to be drawn: its parameters are its own.
  if (name === drawn.name && path === drawn.path) history.replaceState(null, "", link(name, path, query));
}

export function current() {
  const [, name = "", path = "", query = ""] = location.hash.match(/^#\/([^/?]*)\/?([^?]*)\??(.*)$/) ?? [];
  return { name: name || "overview", path, query: new URLSearchParams(query) };
}

let controller = new AbortController();
let drawn = { name: "", path: "" };

/** Draw the page of the address into an element; what was there is left. */
export function show(element, { onTitle, onShown }) {
  controller.abort();
  controller = new AbortController();
  const { signal } = controller;
  const { name, path, query } = current();
  drawn = { name, path };
  const definition = pages.get(name);
  const root = h("div.page", { "data-page": name });
  fill(element, root);
  onShown(name);
  if (!definition) {
    onTitle("Not found");
    root.append(
      h("h1", "There is no such page"),
      emptyView(
        "Nothing to show",
        `The console has no page ${name}.`,
        h("a.button", { href: "#/" }, "Overview"),
      ),
    );
    return;
  }
  onTitle(definition.title);
  const view = { root, path, query, signal, title: (text) => !signal.aborted && onTitle(text) };
  Promise.resolve()
    .then(() => definition.render(view))
    .catch((error) => {
      if (!isAbort(error) && !signal.aborted)
        root.append(errorView(error, () => show(element, { onTitle, onShown })));
      if (!isAbort(error) && !(error instanceof Error && "status" in error) && error?.name !== "Unreachable")
        console.error(error);
    });
}

export const leave = () => controller.abort();
