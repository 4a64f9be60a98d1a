// The texts that all shown models read, and the controls of the generator.

import { element } from "./dom.js";
import { examplesFor } from "./examples.js";
import { fieldsFor, hasGenerator } from "./fields.js";
import { moveSpans } from "./state.js";

const TYPING_PAUSE = 250;

/** The form of the shown models; `change(values, pause)` is called with what the user changes. */
export class InputForm {
  #controls = {};
  #draw = null;

  constructor(form, { models, state, change }) {
    this.state = state;
    this.change = change;
    form.addEventListener("submit", (event) => event.preventDefault());
    const fields = fieldsFor(models).map((field) => this.#field(field));
    const tools = models.some(hasGenerator) ? this.#generatorTools() : null;
    form.replaceChildren(...fields, this.#examples(models[0]), ...(tools ? [tools] : []));
    this.refresh();
  }

  /** Show what the state holds, without touching a field that already shows it. */
  refresh() {
    const state = this.state();
    for (const [name, control] of Object.entries(this.#controls)) {
      if (control.value !== `${state[name]}`) control.value = state[name];
    }
    if (!this.#draw) return;
    const nothing = state.hidden.length === 0;
    for (const button of this.#draw.querySelectorAll("button")) button.disabled = nothing;
    this.#draw.querySelector("output").textContent = state.temperature.toFixed(1);
  }

  #field({ name, label, rows }) {
    const typed = () => {
      const values = { [name]: control.value };
      if (name === "text") {
        const state = this.state();
        values.hidden = moveSpans(state.hidden, state.text, control.value);
      }
      this.change(values, TYPING_PAUSE);
    };
    const control = element("textarea", { name, rows, spellcheck: "false", oninput: typed });
    this.#controls[name] = control;
    return element("label", { class: "field" }, element("span", {}, label), control);
  }

  #examples(model) {
    const examples = examplesFor(model).map((example) => {
      const take = () => this.change({ hidden: [], ...example }, 0);
      return element("button", { type: "button", class: "example", onclick: take }, example.text);
    });
    const label = element("span", { class: "muted" }, "Examples");
    return element("div", { class: "examples", role: "group", "aria-label": "Examples" }, label,
      ...examples);
  }

  #generatorTools() {
    const redraw = () => this.change({ seed: this.state().seed + 1 }, 0);
    const showAll = () => this.change({ hidden: [] }, 0);
    const slider = element("input", {
      type: "range", name: "temperature", min: 0.1, max: 2, step: 0.1,
      oninput: () => this.change({ temperature: Number(slider.value) }, 150),
    });
    this.#controls.temperature = slider;
    this.#draw = element("div", { class: "tools", role: "group", "aria-label": "Generator" },
      element("button", { type: "button", class: "primary", onclick: redraw }, "Draw again"),
      element("button", { type: "button", onclick: showAll }, "Show all words"),
      element("label", { class: "slider" }, "Temperature", slider, element("output")));
    return this.#draw;
  }
}
