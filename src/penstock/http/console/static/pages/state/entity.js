// One entity of a state: its value, and how it came to be, change by change.

import { append, fill, h } from "../../lib/dom.js";
import { isAbort, send, url } from "../../lib/api.js";
import { diffView } from "../../lib/diff.js";
import { count, time, whole } from "../../lib/format.js";
import { jsonView, parse } from "../../lib/json.js";
import { badge, errorView } from "../../lib/views.js";

const STEPS_MAX = 1000;
const SHOWN = 50;

/** Draw an entity; `onOffset(offset)` is called to look at the whole state after a change. */
export async function drawEntity({ root, path, type, key, offset, signal, onOffset, onClose, focus }) {
  const body = h("div.panel", { "aria-busy": true });
  const heading = h("h2", { tabindex: -1 }, type, " ", h("code", key));
  fill(
    root,
    h(
      "section.card.entity",
      { "aria-label": "Entity" },
      h("div.page-head", heading, h("button.quiet", { type: "button", onclick: onClose }, "Close")),
      body,
    ),
  );
  if (focus) heading.focus({ preventScroll: true });
  try {
    const { steps, isPartial } = await history(path, { type, key, offset }, signal);
    body.removeAttribute("aria-busy");
    const states = values(steps);
    const last = states.at(-1)?.value;
    fill(
      body,
      h("h3", "Value"),
      last === undefined ? h("p.dim", "At this offset it does not exist.") : jsonView(JSON.stringify(last)),
      h("h3", "History"),
      h(
        "p.dim",
        `${count(steps.length, "change")}${isPartial ? ", only the first ones were loaded" : ""}, newest first. The time is the one that the writer put into the event.`,
      ),
    );
    const list = h("ol.history");
    body.append(list);
    let shown = 0;
    const more = h("button", { type: "button", onclick: () => add() }, "Show more");
    const add = () => {
      const next = states
        .slice(0, states.length - shown)
        .slice(-SHOWN)
        .reverse();
      append(
        list,
        next.map((each) => line(each, onOffset)),
      );
      shown += next.length;
      more.hidden = shown >= states.length;
    };
    body.append(more);
    add();
  } catch (error) {
    if (!isAbort(error)) fill(body, errorView(error));
  }
}

async function history(path, query, signal) {
  const steps = [];
  let [after, at] = [null, query.offset];
  do {
    const response = await send(url(`v1/state/${path}`, { ...query, offset: at, history: "true", after }), {
      signal,
    });
    const page = parse(await response.text());
    steps.push(...page.history);
    [after, at] = [page.next, page.offset];
  } while (after !== null && steps.length < STEPS_MAX);
  return { steps, isPartial: after !== null };
}

/** Return each step with the value before and after it; `undefined` is none. */
function values(steps) {
  let before;
  return steps.map((step) => {
    const value = step.control || step.operation === "delete" ? undefined : step.value;
    const each = { step, before, value };
    before = value;
    return each;
  });
}

function line({ step, before, value }, onOffset) {
  const what = step.control ?? step.operation;
  const kind = step.control
    ? "warn"
    : step.operation === "delete"
      ? "bad"
      : before === undefined
        ? "good"
        : "accent";
  const facts = [
    badge(what, kind),
    h("span.numeric.dim", `message ${whole(step.ordinal + 1)}`),
    step.timestamp && h("time.dim", { datetime: step.timestamp }, time(step.timestamp)),
    step.txid && h("span.dim", `txid ${step.txid}`),
  ];
  return h(
    "li",
    h(
      "div.step",
      facts,
      h("button.quiet", { type: "button", onclick: () => onOffset(step.offset) }, "State after this"),
    ),
    step.control ? h("p.dim", "The stream was reset.") : diffView(before, value),
  );
}
