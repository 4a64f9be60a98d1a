// The curves of a run, which grow while it trains.

import { fetchCurves } from "./api.js";
import { Chart } from "./chart.js";
import { element } from "./dom.js";
import { failureBox } from "./failure.js";
import { Latest } from "./latest.js";
import { whole } from "./numbers.js";
import { modelHeading } from "./panel.js";

const POLL_PAUSE = 2000;
const MOST_POINTS = 4000;
const TITLES = {
  loss: "Loss",
  accuracy: "Accuracy",
  auc: "AUC",
  rate: "Learning rate",
  speed: "Tokens per second",
};
const STATUS = {
  running: "Training",
  finished: "Finished",
  stopped: "Stopped",
  failed: "Failed",
};

export class CurvesPanel {
  #latest = new Latest();
  #series = new Map();
  #charts = new Map();
  #status = "running";

  constructor(model) {
    this.model = model;
    this.state = element("div", { class: "run-state" });
    this.problem = element("div");
    this.grid = element("div", { class: "charts" }, element("div", { class: "skeleton tall" },
      element("i"), element("i")));
    this.node = element("article", { class: "panel", "aria-label": `Curves of ${model.name}` },
      modelHeading(model), this.state, this.problem, this.grid);
    this.wake = () => { if (!document.hidden) this.update(); };
    document.addEventListener("visibilitychange", this.wake);
  }

  update(pause = 0) {
    this.#latest.schedule((signal) => this.#fetch(signal), pause);
  }

  stop() {
    document.removeEventListener("visibilitychange", this.wake);
    for (const chart of this.#charts.values()) chart.observer.disconnect();
    this.#latest.stop();
  }

  async #fetch(signal) {
    if (document.hidden) return;
    try {
      const answer = await fetchCurves(this.model.model, this.#knownStep(), signal);
      this.problem.replaceChildren();
      this.#merge(answer);
      this.#show(answer);
      if (answer.status === "running") this.update(POLL_PAUSE);
    } catch (failure) {
      if (failure.name === "AbortError") throw failure;
      this.problem.replaceChildren(failureBox(failure, () => this.update()));
    }
  }

  /** Return the step up to which every curve is known; held-out scores come late in their step. */
  #knownStep() {
    let known = Infinity;
    for (const { points } of this.#series.values()) {
      known = Math.min(known, points.at(-1)?.[0] ?? -1);
      if (points.length > MOST_POINTS) known = -1; // the server thins them
    }
    if (known < 0 || known === Infinity) {
      this.#series.clear();
      return null;
    }
    return known;
  }

  #merge(answer) {
    for (const given of answer.series) {
      const kept = this.#series.get(given.name) ?? { ...given, points: [], baseline: null };
      kept.points = appendNew(kept.points, given.points);
      if (given.baseline) kept.baseline = appendNew(kept.baseline ?? [], given.baseline);
      this.#series.set(given.name, kept);
    }
  }

  #show(answer) {
    this.state.replaceChildren(...runState(answer));
    const groups = Map.groupBy
      ? Map.groupBy(this.#series.values(), ({ group }) => group) : grouped(this.#series.values());
    if (groups.size === 0) {
      this.grid.replaceChildren(element("p", { class: "empty" },
        "No step is logged yet. The curves begin with the first one."));
      return;
    }
    for (const [group, series] of groups) this.#chart(group).update(series);
  }

  #chart(group) {
    if (!this.#charts.has(group)) {
      if (this.#charts.size === 0) this.grid.replaceChildren();
      const chart = new Chart(group, TITLES[group] ?? group);
      this.#charts.set(group, chart);
      const order = [...Object.keys(TITLES).filter((name) => this.#charts.has(name)),
        ...[...this.#charts.keys()].filter((name) => !(name in TITLES))];
      this.grid.append(...order.map((name) => this.#charts.get(name).node));
    }
    return this.#charts.get(group);
  }
}

function grouped(series) {
  const groups = new Map();
  for (const one of series) groups.set(one.group, [...(groups.get(one.group) ?? []), one]);
  return groups;
}

function appendNew(known, given) {
  const last = known.at(-1)?.[0] ?? -Infinity;
  return [...known, ...given.filter(([step]) => step > last)];
}

function runState({ status, step, max_steps: most, verdict }) {
  const nodes = [element("p", { class: "row" },
    element("span", { class: `status ${status}` }, STATUS[status] ?? status),
    element("progress", { max: most ?? 1, value: step ?? 0, "aria-label": "Steps" }),
    element("span", { class: "muted" }, most
      ? `step ${whole(step)} of ${whole(most)}` : `step ${whole(step ?? 0)}`))];
  if (verdict) nodes.push(element("p", { class: "note" }, verdict));
  return nodes;
}
