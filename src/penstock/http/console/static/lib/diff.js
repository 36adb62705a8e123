// The difference between two JSON values, part by part.

import { h } from "./dom.js";
import { Exact, preview } from "./json.js";

const CHANGES_MAX = 200;

/**
 * Return the changes from one value to another: `{path, kind, before, after}`, where `kind` is `added`, `removed` or
 * `changed` and `path` the names and numbers that lead to the part. `undefined` is no value at all.
 */
export function changes(before, after, path = []) {
  if (before === undefined && after === undefined) return [];
  if (before === undefined) return [{ path, kind: "added", after }];
  if (after === undefined) return [{ path, kind: "removed", before }];
  if (isObject(before) && isObject(after)) {
    const names = new Set([...Object.keys(before), ...Object.keys(after)]);
    return [...names].flatMap((name) => changes(own(before, name), own(after, name), [...path, name]));
  }
  if (Array.isArray(before) && Array.isArray(after)) return arrayChanges(before, after, path);
  return same(before, after) ? [] : [{ path, kind: "changed", before, after }];
}

/** Elements that are equal at both ends stay what they are: one that was put in between shows as just that. */
function arrayChanges(before, after, path) {
  let start = 0;
  while (start < before.length && start < after.length && same(before[start], after[start])) start += 1;
  let end = 0;
  while (
    end < before.length - start &&
    end < after.length - start &&
    same(before.at(-1 - end), after.at(-1 - end))
  )
    end += 1;
  const [old, next] = [before.slice(start, before.length - end), after.slice(start, after.length - end)];
  const found = [];
  for (let at = 0; at < Math.max(old.length, next.length); at += 1)
    found.push(...changes(old[at], next[at], [...path, start + at]));
  return found;
}

const isObject = (value) =>
  value !== null && typeof value === "object" && !Array.isArray(value) && !(value instanceof Exact);
const own = (value, name) => (Object.hasOwn(value, name) ? value[name] : undefined);

function same(one, other) {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  return JSON.stringify(sorted(one)) === JSON.stringify(sorted(other));
}

const sorted = (value) =>
  Array.isArray(value)
    ? value.map(sorted)
    : isObject(value)
      ? Object.fromEntries(
          Object.keys(value)
            .sort()
            .map((name) => [name, sorted(value[name])]),
        )
      : value;

const WORDS = { added: ["+", "added"], removed: ["−", "removed"], changed: ["~", "changed"] };

/** Return an element that lists the changes from one value to another. */
export function diffView(before, after) {
  const found = changes(before, after);
  if (found.length === 0) return h("p.dim", "The value is the same.");
  const lines = found.slice(0, CHANGES_MAX).map(({ path, kind, before: old, after: next }) => {
    const [mark, word] = WORDS[kind];
    const values =
      kind === "changed"
        ? [h("span.old", text(old)), " → ", h("span.new", text(next))]
        : h(kind === "added" ? "span.new" : "span.old", text(kind === "added" ? next : old));
    return h(
      "li",
      { class: kind },
      h("span.sign", { "aria-hidden": true }, mark),
      h("span.hidden", `${word}: `),
      path.length > 0 && [h("span.key", pathOf(path)), " "],
      values,
    );
  });
  const more = found.length > CHANGES_MAX && h("li.dim", `${found.length - CHANGES_MAX} more changes`);
  return h("ul.diff", lines, more);
}

const text = (value) => preview(JSON.stringify(value), 500);

const pathOf = (path) =>
  path.map((part, at) => (typeof part === "number" ? `[${part}]` : `${at ? "." : ""}${part}`)).join("");
