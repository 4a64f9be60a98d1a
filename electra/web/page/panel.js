// One model and its answer to the text: empty, loading, answered or failed.

import { judgeTokens, predict } from "./api.js";
import { renderAnswer } from "./answers.js";
import { element } from "./dom.js";
import { failureBox } from "./failure.js";
import { checkInput, hasGenerator, inputFor, missingInput } from "./fields.js";
import { Latest } from "./latest.js";
import { compact, whole } from "./numbers.js";
import { renderTokens } from "./tokens.js";
import { hideTip } from "./tooltip.js";

/** Return the line under a model's name. */
export function describeModel(model) {
  const networks = (model.networks ?? []).join(" + ") || "pre-training";
  const isPretraining = model.kind === "pretraining";
  const parts = [isPretraining ? networks : model.kind];
  if (model.task && model.task !== model.kind && !isPretraining) parts.push(model.task);
  if (model.family) parts.push(model.family);
  if (model.parameters) parts.push(`${compact(model.parameters)} parameters`);
  if (model.max_length) parts.push(`up to ${whole(model.max_length)} tokens`);
  return parts.join(" · ");
}

export function modelHeading(model) {
  return element("header", {},
    element("h2", {}, model.name),
    element("p", { class: "muted" }, describeModel(model)));
}

export class Panel {
  #latest = new Latest();
  #words = { text: null, words: [] };

  constructor(model, { limits, state, actions }) {
    this.model = model;
    this.limits = limits;
    this.state = state;
    this.actions = actions;
    this.body = element("div", { class: "answer" });
    this.node = element("article", { class: "panel", "aria-label": model.name },
      modelHeading(model), this.body);
  }

  /** Ask the model about the present text, after a pause. */
  update(pause = 0) {
    const state = this.state();
    this.#latest.stop();
    this.#busy(false);
    const missing = missingInput(this.model, state);
    if (missing && !this.model.note) {
      this.#show(element("p", { class: "empty" }, `${missing}, or take an example.`));
      return;
    }
    try {
      checkInput(this.model, state, this.limits);
    } catch (failure) {
      this.#show(failureBox(failure, null));
      return;
    }
    this.#busy(true);
    this.#latest.schedule((signal) => this.#answer(state, signal), pause);
  }

  stop() {
    this.#latest.stop();
  }

  async #answer(state, signal) {
    try {
      const nodes = this.model.kind === "pretraining"
        ? await this.#judge(state, signal)
        : renderAnswer(this.model, state, await predict(
          this.model.model, inputFor(this.model, state), signal));
      this.#show(...nodes);
    } catch (failure) {
      if (failure.name === "AbortError") throw failure;
      this.#show(failureBox(failure, () => this.update()));
    }
    this.#busy(false);
  }

  async #judge(state, signal) {
    const request = { text: state.text, hidden: [], seed: state.seed,
      temperature: state.temperature };
    const wantsHidden = hasGenerator(this.model) && state.hidden.length > 0;
    if (wantsHidden && this.#words.text !== state.text) {
      // Where words begin and end is the tokenizer's choice: the server tells it.
      const { words } = await judgeTokens(this.model.model, request, signal);
      this.#words = { text: state.text, words };
    }
    if (wantsHidden) request.hidden = hiddenWords(this.#words.words, state.hidden);
    const result = await judgeTokens(this.model.model, request, signal);
    this.#words = { text: state.text, words: result.words };
    return renderTokens(this.model, state, result, this.actions);
  }

  #busy(isBusy) {
    this.node.setAttribute("aria-busy", String(isBusy));
    if (isBusy && !this.body.hasChildNodes()) {
      this.body.append(element("div", { class: "skeleton" },
        element("i"), element("i"), element("i")));
    }
  }

  /** Replace the answer; the focus stays at the place where it was. */
  #show(...nodes) {
    const focused = this.body.contains(document.activeElement)
      ? document.activeElement.dataset.key : undefined;
    hideTip();
    this.body.replaceChildren(...nodes);
    if (focused === undefined) return;
    const again = this.body.querySelector(`[data-key="${CSS.escape(focused)}"]`)
      ?? this.body.querySelector("[data-key]");
    again?.focus({ preventScroll: true });
  }
}

/** Return the numbers of the words that stand in hidden stretches of the text. */
function hiddenWords(words, spans) {
  const hidden = [];
  words.forEach((word, index) => {
    if (spans.some(([start, end]) => word.start < end && start < word.end)) hidden.push(index);
  });
  return hidden;
}
