// Which fields a model reads, and what is sent for them.

import { Failure } from "./api.js";
import { whole } from "./numbers.js";

const TEXT_LABELS = { pretraining: "Sentence", span: "Passage", choose: "Context" };
export const KINDS = ["pretraining", "classify", "score", "multi-label", "tag", "span", "choose"];

export const hasGenerator = (model) => (model.networks ?? []).includes("generator");
export const hasDiscriminator = (model) => (model.networks ?? []).includes("discriminator");
const readsPairs = (model) => ["classify", "score", "multi-label"].includes(model.kind);
export const isFinetuned = (model) => model.kind !== "pretraining";

/** Return the form's fields for all shown models together, in their order on the page. */
export function fieldsFor(models) {
  const kinds = models.map((model) => model.kind);
  const takes = models.filter(readsPairs).map((model) => model.takes ?? "text");
  const label = kinds.map((kind) => TEXT_LABELS[kind]).find(Boolean) ?? "Text";
  const fields = [{ name: "text", label, rows: 3 }];
  if (kinds.includes("span")) fields.unshift({ name: "question", label: "Question", rows: 1 });
  if (takes.includes("pair")) fields.push({ name: "pair", label: "Second text", rows: 2 });
  else if (takes.includes("text or pair")) {
    fields.push({ name: "pair", label: "Second text (may stay empty)", rows: 2 });
  }
  if (kinds.includes("choose")) {
    fields.push({ name: "options", label: "Options, one on each line", rows: 3 });
  }
  return fields;
}

export function optionsOf(state) {
  return state.options
    .split("\n")
    .map((option) => option.trim())
    .filter(Boolean);
}

/** Return what the user has yet to type for this model, or null. */
export function missingInput(model, state) {
  if (!state.text.trim()) return `Type a ${(TEXT_LABELS[model.kind] ?? "text").toLowerCase()}`;
  if (model.kind === "span" && !state.question.trim()) return "Type a question";
  const needsPair = readsPairs(model) && model.takes === "pair";
  if (needsPair && !state.pair.trim()) return "Type a second text";
  if (model.kind === "choose" && optionsOf(state).length < 2) return "Type two options or more";
  return null;
}

/** Throw a failure for an input that the server would refuse. */
export function checkInput(model, state, limits) {
  if (!KINDS.includes(model.kind)) {
    throw new Failure(
      `This page cannot show a model of the kind “${model.kind}”. ` +
        "Use `electra predict` for it, or choose another model above.",
      { status: 422 },
    );
  }
  if (model.note) throw new Failure(model.note, { status: 422 });
  const most = limits.characters;
  const typed = [state.text, state.pair, state.question, state.options];
  const longest = Math.max(...typed.map((text) => text.length));
  if (most && longest > most) {
    throw new Failure(
      `The text has ${whole(longest)} characters and the server takes ${whole(most)}. ` +
        "Shorten it, or give a table to `electra predict`.",
      { status: 413 },
    );
  }
}

/** Return the input of a request for a fine-tuned model. */
export function inputFor(model, state) {
  if (model.kind === "span") return { question: state.question, context: state.text };
  if (model.kind === "choose") return { context: state.text, options: optionsOf(state) };
  const hasPair = readsPairs(model) && model.takes !== "text" && state.pair.trim() !== "";
  return hasPair ? { text: state.text, text_pair: state.pair } : state.text;
}
