// Tables: sorted by their heads, and drawn only as far as they are in view, so that 10,000 rows are no burden.

import { fill, h } from "./dom.js";

const VIRTUAL_MIN = 200; // with fewer rows all of them are drawn
const MARGIN = 20; // rows that are drawn above and below the view

/**
 * Return `{element, update(rows), sort}`.
 *
 * `columns` are `{key, title, cell(row), value(row), numeric, sortable, wide, class}`: `cell` returns what is shown,
 * `value` what is sorted by. A column that is `wide` is left out on narrow screens. `sort` is `{key, direction}`,
 * `empty` a text or a function that returns what is shown without rows, and `rowHeight` the height of each in pixels
 * where there are many.
 */
export function table({
  columns,
  caption,
  rows = [],
  sort = null,
  onSort = null,
  empty = "Nothing here.",
  rowHeight = 33,
}) {
  let current = rows;
  let order = sort;
  const body = h("tbody");
  const heads = columns.map((column) => head(column));
  const element = h(
    "div.table-wrap",
    { tabindex: 0, role: "region", "aria-label": caption },
    h("table", h("caption.hidden", caption), h("thead", h("tr", heads)), body),
  );
  element.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  new ResizeObserver(() => draw()).observe(element);

  function head(column) {
    const content = column.sortable
      ? h("button.sort", { type: "button", onclick: () => sortBy(column.key) }, column.title)
      : column.title;
    return h("th", { scope: "col", class: classOf(column), "data-key": column.key }, content);
  }

  function sortBy(key) {
    const column = columns.find((each) => each.key === key);
    const first = column.numeric ? -1 : 1;
    order = order?.key === key ? { key, direction: -order.direction } : { key, direction: first };
    onSort?.(order);
    render();
  }

  function sorted() {
    if (order === null) return current;
    const column = columns.find((each) => each.key === order.key);
    const value = column?.value ?? ((row) => row[order.key]);
    return [...current].sort((one, other) => compare(value(one), value(other)) * order.direction);
  }

  let all = [];
  let drawn = [-1, -1];
  function render() {
    all = sorted();
    drawn = [-1, -1];
    for (const th of heads) {
      const isSorted = order?.key === th.dataset.key;
      if (isSorted) th.setAttribute("aria-sort", order.direction > 0 ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    }
    element.classList.toggle("virtual", all.length >= VIRTUAL_MIN);
    element.firstChild.setAttribute("aria-rowcount", all.length + 1);
    draw();
  }

  function draw() {
    if (all.length === 0) {
      fill(
        body,
        h("tr.empty", h("td", { colspan: columns.length }, typeof empty === "function" ? empty() : empty)),
      );
      return;
    }
    let [start, end] = [0, all.length];
    if (all.length >= VIRTUAL_MIN) {
      start = Math.max(0, Math.floor(element.scrollTop / rowHeight) - MARGIN);
      end = Math.min(all.length, start + Math.ceil((element.clientHeight || 800) / rowHeight) + 2 * MARGIN);
    }
    if (start === drawn[0] && end === drawn[1]) return;
    drawn = [start, end];
    const focused = body.contains(document.activeElement)
      ? document.activeElement.closest("tr")?.dataset.index
      : null;
    fill(
      body,
      space(start),
      all.slice(start, end).map((row, at) => line(row, start + at)),
      space(all.length - end),
    );
    if (focused !== null && focused !== undefined)
      body
        .querySelector(`tr[data-index="${focused}"] a, tr[data-index="${focused}"] button`)
        ?.focus({ preventScroll: true });
  }

  function space(count) {
    if (count <= 0) return null;
    const row = h("tr", { "aria-hidden": true }, h("td", { colspan: columns.length, class: "space" }));
    row.firstChild.style.height = `${count * rowHeight}px`;
    return row;
  }

  function line(row, index) {
    return h(
      "tr",
      { "data-index": index, "aria-rowindex": all.length >= VIRTUAL_MIN ? index + 2 : null },
      columns.map((column) =>
        h("td", { class: classOf(column) }, column.cell ? column.cell(row) : row[column.key]),
      ),
    );
  }

  const update = (next) => {
    current = next;
    render();
  };
  update(rows);
  return {
    element,
    update,
    get sort() {
      return order;
    },
  };
}

const classOf = (column) =>
  [column.numeric && "numeric", column.wide && "wide", column.class].filter(Boolean).join(" ") || null;

function compare(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return -1;
  if (other === null || other === undefined) return 1;
  return one < other ? -1 : 1;
}
