// Small line charts in SVG, with a text for those who do not see them.

import { h, s } from "./dom.js";
import { duration } from "./format.js";

const [WIDTH, HEIGHT] = [300, 64];

const STEPS_MIN = 30; // a chart of fewer values is not filled by them

/**
 * Return a chart: `series` are `{name, values}` of equal length, `times` the times of the values.
 * `format` shows a value, `title` names the chart, and a value that is null leaves a gap.
 */
export function chart({ title, series, times, format }) {
  const known = series.flatMap((each) => each.values).filter((each) => each !== null && each !== undefined);
  const highest = Math.max(0, ...known);
  const top = highest || 1;
  const at = times.map((time) => new Date(time).getTime());
  const end = at.at(-1) ?? 0;
  const step = (end - at[0]) / (at.length - 1) || 10_000;
  const span = Math.max(end - (at[0] ?? end), STEPS_MIN * step);
  const x = (index) => WIDTH - ((end - at[index]) / span) * WIDTH;
  const y = (amount) => HEIGHT - 1 - (amount / top) * (HEIGHT - 6);
  const last = series[0].values.findLast((each) => each !== null && each !== undefined);
  const range = known.length
    ? `highest ${format(highest)} in ${duration(Math.ceil(span / 1000))}`
    : "no values yet";
  const label = `${title}: ${series.map((each) => `${series.length > 1 ? `${each.name} ` : ""}${format(each.values.at(-1))}`).join(", ")}; ${range}`;
  const svg = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
    series.map((each, index) => lines(each, x, y, index === 0)),
  );
  const legend =
    series.length > 1 &&
    h(
      "ul.legend",
      series.map((each, index) =>
        h("li", { class: `series-${index}` }, `${each.name} ${format(each.values.at(-1))}`),
      ),
    );
  const mark = h("p.reading", range);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const time = end - (1 - (event.clientX - box.left) / box.width) * span;
    const nearest = at.reduce(
      (best, each, index) => (Math.abs(each - time) < Math.abs(at[best] - time) ? index : best),
      0,
    );
    if (at.length > 0)
      mark.textContent = `${new Date(at[nearest]).toLocaleTimeString()} · ${series.map((each) => format(each.values[nearest])).join(" · ")}`;
  });
  svg.addEventListener("pointerleave", () => (mark.textContent = range));
  return h(
    "figure.chart",
    h("figcaption", title),
    h("p.value", known.length ? format(last) : "–"),
    svg,
    legend,
    mark,
  );
}

function lines(each, x, y, isFirst) {
  const parts = [[]];
  each.values.forEach((amount, at) => {
    if (amount === null || amount === undefined) parts.push([]);
    else parts.at(-1).push([x(at), y(amount)]);
  });
  const at = isFirst ? "0" : "1";
  return parts
    .filter((part) => part.length > 0)
    .map((part) => {
      const points = (part.length === 1 ? [part[0], [part[0][0] + 1, part[0][1]]] : part).map(
        ([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`,
      );
      const area =
        isFirst &&
        s("polygon", {
          class: "area",
          points: [
            `${part[0][0].toFixed(1)},${HEIGHT}`,
            ...points,
            `${part.at(-1)[0].toFixed(1)},${HEIGHT}`,
          ].join(" "),
        });
      return [
        area || null,
        s("polyline", {
          class: `series-${at}`,
          points: points.join(" "),
          "vector-effect": "non-scaling-stroke",
        }),
      ];
    });
}
