// Builds elements. Text reaches the page as text nodes only, with what would be invisible made visible.

const SVG = "http://www.w3.org/2000/svg";

// Control characters, invisible ones, those that change the direction of text, halves of surrogate pairs. Line feed
// and tab stay, and so does the joiner between two emojis.
const HIDDEN =
  /(?![\n\t])[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\uffff\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|(?<!\p{Extended_Pictographic}\ufe0f?)\u200d|\u200d(?!\p{Extended_Pictographic})/gu;

const escape = (character) => `\\u{${character.codePointAt(0).toString(16)}}`;

/** Return text in which every character can be seen: the others are spelled `\u{202e}`. */
export function visible(text) {
  return String(text).replace(HIDDEN, escape);
}

/** Return nodes of a text; escapes of what would be invisible are marked as such. */
export function textNodes(text) {
  text = String(text);
  if (text.search(HIDDEN) < 0) return [document.createTextNode(text)];
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > at) nodes.push(document.createTextNode(text.slice(at, match.index)));
    const mark = document.createElement("span");
    mark.className = "escape";
    mark.textContent = escape(match[0]);
    nodes.push(mark);
    at = match.index + match[0].length;
  }
  if (at < text.length) nodes.push(document.createTextNode(text.slice(at)));
  return nodes;
}

/**
 * Return an element: `h("a.quiet#top", {href, onclick, "aria-label"}, "text", child, [more])`.
 * Properties that begin with `on` are listeners; false, null and undefined leave an attribute out.
 */
export function h(spec, properties, ...children) {
  return build(document.createElement(nameOf(spec)), spec, properties, children);
}

/** As `h`, for SVG. */
export function s(spec, properties, ...children) {
  return build(document.createElementNS(SVG, nameOf(spec)), spec, properties, children);
}

const nameOf = (spec) => spec.match(/^[a-z0-9-]+/i)[0];

function build(element, spec, properties, children) {
  const classes = [...spec.matchAll(/\.([\w-]+)/g)].map((match) => match[1]);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const id = spec.match(/#([\w-]+)/);
  if (id) element.id = id[1];
  if (properties !== null && properties !== undefined && !isProperties(properties)) {
    children = [properties, ...children];
  } else {
    for (const [name, value] of Object.entries(properties ?? {})) set(element, name, value);
  }
  append(element, children);
  return element;
}

function isProperties(value) {
  return typeof value === "object" && !Array.isArray(value) && !(value instanceof Node);
}

function set(element, name, value) {
  if (value === false || value === null || value === undefined) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "class")
    element.setAttribute("class", [element.getAttribute("class"), value].filter(Boolean).join(" "));
  else if (name === "value") element.value = value;
  else if (name === "href") element.setAttribute("href", safeUrl(value));
  else if (name === "title" || name === "alt" || name.startsWith("aria-"))
    element.setAttribute(name, visible(value));
  else element.setAttribute(name, value === true ? "" : String(value));
}

/** Return a URL that leads to a page; `javascript:` and the like lead nowhere. */
function safeUrl(value) {
  const url = new URL(value, document.baseURI);
  return ["http:", "https:", "blob:"].includes(url.protocol) ? String(value) : "#";
}

/** Add children: nodes, texts, numbers, lists of these; null, undefined and booleans are left out. */
export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || typeof child === "boolean") continue;
    element.append(...(child instanceof Node ? [child] : textNodes(child)));
  }
  return element;
}

/** Replace what is in an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

let ids = 0;
/** Return an id that no other element has. */
export const uniqueId = (prefix = "id") => `${prefix}-${++ids}`;

const PRESS_ENDS = ["pointerup", "pointercancel", "contextmenu", "dragend", "blur"];
const PRESS_MS = 10_000; // menus of the browser swallow the end of a press
let press = null; // settles when the button of the pointer, or the finger, is up again

addEventListener(
  "pointerdown",
  (event) => {
    if (event.button !== 0 || event.target.closest?.("select, input, textarea")) return;
    press ??= new Promise((resolve) => {
      const done = (ending) => {
        if (ending?.type === "blur" && ending.target !== window) return; // a press takes the focus from elsewhere
        clearTimeout(timer);
        for (const name of PRESS_ENDS) removeEventListener(name, done, true);
        press = null;
        setTimeout(resolve); // after the click that follows
      };
      const timer = setTimeout(() => done(), PRESS_MS);
      for (const name of PRESS_ENDS) addEventListener(name, done, true);
    });
  },
  true,
);

/**
 * Wait until nothing on the page is pressed. What is drawn again between press and release gets no click, and a text
 * that is being selected is lost.
 */
export async function released() {
  while (press) await press;
}
