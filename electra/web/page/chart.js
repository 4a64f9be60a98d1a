// One chart: lines over steps, their baselines dashed, and the values at the pointer or the focus.

import { announce, element, svgElement } from "./dom.js";
import { compact, measured, whole } from "./numbers.js";

const HEIGHT = 210;
const MARGIN = { left: 50, right: 14, top: 10, bottom: 26 };

/** Return about so many round numbers between two values. */
export function roundTicks(low, high, count) {
  const rough = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) {
    ticks.push(Number((n * step).toPrecision(12)));
  }
  return ticks;
}

/** Return the last point at or before a step, or the first one. */
function pointAt(points, step) {
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (points[middle][0] <= step) low = middle;
    else high = middle - 1;
  }
  return points[low] ?? null;
}

export class Chart {
  #series = [];
  #cursor = null;
  #width = 0;

  constructor(group, title) {
    this.group = group;
    this.title = title;
    this.plot = element("div", { class: "plot", tabindex: "0", role: "group",
      "aria-label": `${title} by step: arrow keys read the values`,
      onpointermove: (event) => this.#point(event),
      onpointerleave: () => this.#moveTo(null),
      onblur: () => this.#moveTo(null),
      onkeydown: (event) => this.#key(event) });
    this.step = element("span", { class: "muted" });
    this.values = element("ul", { class: "values" });
    this.node = element("figure", { class: "chart", "data-group": group },
      element("figcaption", {},
        element("div", { class: "row" }, element("h3", {}, title), this.step), this.values),
      this.plot);
    this.observer = new ResizeObserver(() => {
      if (this.plot.clientWidth !== this.#width) this.#draw();
    });
    this.observer.observe(this.plot);
  }

  update(series) {
    this.#series = series.filter((one) => one.points.length > 0);
    this.#draw();
  }

  #range() {
    const steps = [];
    const values = [];
    for (const { points, baseline } of this.#series) {
      for (const [step, value] of [...points, ...(baseline ?? [])]) {
        steps.push(step);
        if (Number.isFinite(value)) values.push(value);
      }
    }
    const least = (list) => list.reduce((one, other) => Math.min(one, other), Infinity);
    const most = (list) => list.reduce((one, other) => Math.max(one, other), -Infinity);
    let [low, high] = [least(values), most(values)];
    if (this.group === "rate" || this.group === "speed") low = Math.min(low, 0);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return { first: least(steps), last: Math.max(most(steps), least(steps) + 1),
      low: low === 0 ? 0 : low - room, high: high + room };
  }

  #draw() {
    const width = this.plot.clientWidth;
    this.#width = width;
    this.#values();
    if (width === 0 || this.#series.length === 0) return;
    const range = this.#range();
    this.x = (step) => MARGIN.left + ((step - range.first) / (range.last - range.first))
      * (width - MARGIN.left - MARGIN.right);
    this.y = (value) => HEIGHT - MARGIN.bottom - ((value - range.low) / (range.high - range.low))
      * (HEIGHT - MARGIN.top - MARGIN.bottom);
    this.pointer = svgElement("g", { class: "pointer" });
    this.plot.replaceChildren(svgElement("svg", { width, height: HEIGHT, "aria-hidden": "true" },
      ...this.#axes(range, width), ...this.#lines(), this.pointer));
    this.#mark();
  }

  #axes(range, width) {
    const nodes = [];
    const ticks = roundTicks(range.low, range.high, 4);
    for (const value of ticks) {
      const y = this.y(value);
      nodes.push(
        svgElement("line",
          { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
        svgElement("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" },
          this.#short(value, ticks[1] - ticks[0])));
    }
    for (const step of roundTicks(range.first, range.last, Math.max(2, Math.floor(width / 110)))) {
      if (!Number.isInteger(step)) continue;
      nodes.push(svgElement("text", { x: this.x(step), y: HEIGHT - 6, "text-anchor": "middle" },
        compact(step)));
    }
    return nodes;
  }

  #short(value, distance) {
    if (this.group === "rate") return value === 0 ? "0" : value.toExponential(0);
    if (!(distance < 1)) return compact(value);
    return value.toFixed(Math.min(Math.ceil(-Math.log10(distance) - 1e-9), 6));
  }

  #lines() {
    const nodes = [];
    this.#series.forEach(({ points, baseline }, index) => {
      const hue = `line-${index % 6}`;
      if (baseline?.length) {
        nodes.push(svgElement("path", { class: `curve baseline ${hue}`, d: this.#path(baseline) }));
      }
      nodes.push(svgElement("path", { class: `curve ${hue}`, d: this.#path(points) }));
      const [step, value] = points.at(-1);
      nodes.push(svgElement("circle",
        { class: `dot ${hue}`, r: 3, cx: this.x(step), cy: this.y(value) }));
    });
    return nodes;
  }

  #path(points) {
    const finite = points.filter(([, value]) => Number.isFinite(value));
    const places = finite.map(([step, value]) =>
      `${this.x(step).toFixed(1)} ${this.y(value).toFixed(1)}`);
    return places.length > 0 ? `M${places.join("L")}` : "";
  }

  #steps() {
    const steps = new Set();
    for (const { points } of this.#series) for (const [step] of points) steps.add(step);
    return [...steps].sort((one, other) => one - other);
  }

  #point(event) {
    if (!this.x) return;
    const at = event.clientX - this.plot.getBoundingClientRect().left;
    const far = (step) => Math.abs(this.x(step) - at);
    this.#moveTo(this.#steps().reduce((best, step) => (far(step) < far(best) ? step : best)));
  }

  #key(event) {
    const steps = this.#steps();
    const now = this.#cursor === null ? steps.length : steps.indexOf(this.#cursor);
    const last = steps.length - 1;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.#moveTo(steps[Math.min(Math.max(to, 0), last)]);
    announce(`${this.step.textContent}: ${this.values.textContent}`);
  }

  #moveTo(step) {
    this.#cursor = step;
    this.#mark();
    this.#values();
  }

  #mark() {
    if (!this.pointer) return;
    if (this.#cursor === null) {
      this.pointer.replaceChildren();
      return;
    }
    const x = this.x(this.#cursor);
    const dots = this.#series.map(({ points }, index) => {
      const [step, value] = pointAt(points, this.#cursor);
      return svgElement("circle",
        { class: `dot line-${index % 6}`, r: 4, cx: this.x(step), cy: this.y(value) });
    });
    this.pointer.replaceChildren(
      svgElement("line", { x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }), ...dots);
  }

  /** Write the legend: each line with its value at the cursor, or its last one. */
  #values() {
    const step = this.#cursor ?? Infinity;
    const rows = this.#series.map(({ name, points, baseline }, index) => {
      const parts = [element("span", { class: `swatch line-${index % 6}` }), `${name} `,
        element("b", {}, measured(pointAt(points, step)[1], this.group))];
      if (baseline?.length) {
        const value = measured(pointAt(baseline, step)[1], this.group);
        parts.push(element("span", { class: "muted" }, ` baseline ${value}`));
      }
      return element("li", {}, ...parts, " ");
    });
    const steps = this.#steps();
    const at = this.#cursor ?? steps.at(-1);
    this.step.textContent = at === undefined ? "" : `step ${whole(at)}`;
    this.values.replaceChildren(...rows);
  }
}
