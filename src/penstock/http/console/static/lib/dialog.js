// Questions: the browser's own dialog, with a form in it.

import { fill, h, uniqueId } from "./dom.js";
import { errorView } from "./views.js";

/**
 * Ask something in a dialog, and do it.
 *
 * `fields` are elements, `action(form, signal)` does what was asked and closes the dialog unless it throws: then the
 * error is shown and the dialog stays. Resolves to what `action` returns, or to null if it was cancelled.
 */
export function ask({ title, fields = [], confirm = "OK", danger = false, action, typed = null }) {
  return new Promise((resolve) => {
    const heading = uniqueId("dialog");
    const problem = h("div");
    const controller = new AbortController();
    const submit = h(
      "button.primary",
      { type: "submit", class: danger ? "danger" : null, disabled: typed !== null },
      confirm,
    );
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", { id: heading }, title),
      fields,
      typed && typedField(typed, submit),
      problem,
      h("div.actions", h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submit),
    );
    const dialog = h("dialog", { "aria-labelledby": heading }, form);
    let result = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (submit.disabled) return;
      submit.disabled = true;
      fill(problem);
      try {
        result = (await action(new FormData(form), controller.signal)) ?? true;
        dialog.close();
      } catch (error) {
        fill(problem, errorView(error));
        submit.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      controller.abort();
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    form.querySelector("input, select, textarea")?.focus();
  });
}

/** The field of a confirmation: the name has to be typed. `typed` is the list of texts that are accepted. */
function typedField(typed, submit) {
  const input = h("input", {
    type: "text",
    autocomplete: "off",
    spellcheck: "false",
    name: "typed",
    autocapitalize: "off",
  });
  input.addEventListener("input", () => (submit.disabled = !typed.includes(input.value)));
  return h("label.field", h("span", "Type ", h("code", typed[0]), " to confirm"), input);
}

/** Return a labelled field: `field("Path", {name, placeholder, hint})`; `control` is another element than an input. */
export function field(label, { hint = null, control = null, ...properties } = {}) {
  const help = hint ? uniqueId("hint") : null;
  const input =
    control ?? h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...properties });
  if (help) input.setAttribute("aria-describedby", help);
  return h("label.field", h("span", label), input, hint && h("small", { id: help }, hint));
}

/** Return a select: `options` are texts, or [value, text]. */
export function select(properties, options, value) {
  const element = h(
    "select",
    properties,
    options.map((each) => h("option", { value: [each].flat()[0] }, [each].flat().at(-1))),
  );
  if (value !== undefined) element.value = value;
  return element;
}
