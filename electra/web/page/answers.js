// Answers of fine-tuned models: bars, marks in the text, a score, ranked options.

import { announce, element, withVariables } from "./dom.js";
import { optionsOf } from "./fields.js";
import { percent, whole } from "./numbers.js";

const SHOWN_CLASSES = 12;
const HUES = 8;

const RENDERERS = {
  classify: renderClasses,
  "multi-label": renderLabels,
  score: renderScore,
  tag: renderEntities,
  span: renderSpan,
  choose: renderChoice,
};

/** Return the nodes that show one answer. */
export function renderAnswer(model, state, answer) {
  const nodes = RENDERERS[model.kind](answer, state, model);
  if (answer.cut) {
    nodes.unshift(element("p", { class: "note" }, "The text is longer than the model reads: only " +
      `its first ${whole(model.max_length)} tokens are answered.`));
  }
  if (answer.mostly_unknown) {
    nodes.unshift(element("p", { class: "note" }, "Most of the text is not in the model's " +
      "vocabulary, so the answer says little."));
  }
  return nodes;
}

function headline(...parts) {
  announce(parts.map((part) => part.textContent ?? part).join(""));
  return element("p", { class: "headline" }, ...parts);
}

function barRow(name, probability, isChosen) {
  const bar = withVariables(element("span", { class: "bar" }), { share: probability.toFixed(4) });
  return element("li", { class: isChosen ? "line chosen" : "line" },
    element("span", { class: "name" }, name), bar,
    element("span", { class: "value" }, percent(probability)));
}

/** Return bars, the likeliest first; the rest of many classes folds away. */
function bars(probabilities, chosen) {
  const ranked = Object.entries(probabilities).sort((one, other) => other[1] - one[1]);
  const rows = ranked.map(([name, value]) => barRow(name, value, chosen.includes(name)));
  const nodes = [element("ol", { class: "bars" }, ...rows.slice(0, SHOWN_CLASSES))];
  if (rows.length > SHOWN_CLASSES) {
    const more = rows.slice(SHOWN_CLASSES);
    nodes.push(element("details", {}, element("summary", {}, `${more.length} more classes`),
      element("ol", { class: "bars" }, ...more)));
  }
  return nodes;
}

function renderClasses(answer) {
  const certainty = percent(answer.probabilities[answer.label] ?? 0);
  return [headline(element("strong", {}, answer.label), ` with ${certainty}`),
    ...bars(answer.probabilities, [answer.label])];
}

function renderLabels(answer) {
  const said = answer.labels.length > 0 ? answer.labels.join(", ") : "None of the labels";
  return [headline(element("strong", {}, said)), ...bars(answer.probabilities, answer.labels)];
}

function renderScore(answer, state, model) {
  const nodes = [headline(element("strong", { class: "score" }, answer.score.toFixed(2)),
    model.range ? ` from ${model.range[0]} to ${model.range[1]}` : "")];
  if (!model.range) return nodes;
  const [low, high] = model.range;
  const share = Math.min(Math.max((answer.score - low) / (high - low), 0), 1);
  const scale = element("div", { class: "gauge", "aria-hidden": "true" }, element("span"));
  nodes.push(withVariables(scale, { share: share.toFixed(4) }));
  return nodes;
}

/** Return the text with marks around stretches, which come in their order and do not overlap. */
function markedText(text, stretches, markOf) {
  const node = element("p", { class: "passage" });
  let end = 0;
  for (const stretch of stretches) {
    node.append(text.slice(end, stretch.start), markOf(stretch));
    end = stretch.end;
  }
  node.append(text.slice(end));
  return node;
}

function hueOf(label, model) {
  const plain = (model.labels ?? []).map((name) => name.replace(/^[BIES]-/, ""));
  const kinds = [...new Set(plain)].filter((name) => name !== "O");
  return Math.max(kinds.indexOf(label), 0) % HUES;
}

function renderEntities(answer, state, model) {
  const found = answer.entities;
  if (found.length === 0 && answer.tokens.some(({ tag }) => tag !== "O")) {
    return renderTags(answer, state, model);
  }
  const markOf = (entity) => labelledMark(entity, state, model);
  const count = `${found.length} ${found.length === 1 ? "entity" : "entities"}`;
  return [headline(element("strong", {}, found.length > 0 ? count : "No entities")),
    markedText(state.text, found, markOf)];
}

/** Show a tag at every word, for tags that are not those of entities. */
function renderTags(answer, state, model) {
  const tagged = answer.tokens.map((token) => ({ ...token, label: token.tag }));
  return [headline(element("strong", {}, `${tagged.length} words`)),
    markedText(state.text, tagged, (token) => labelledMark(token, state, model))];
}

function labelledMark({ start, end, label, probability }, state, model) {
  const tip = probability === undefined ? label : `${label}  ${percent(probability)}`;
  return element("mark", { class: `entity hue-${hueOf(label, model)}`, "data-tip": tip },
    state.text.slice(start, end), element("span", { class: "tag" }, label));
}

function renderSpan(answer, state) {
  const certainty = Number.isFinite(answer.probability)
    ? ` with ${percent(answer.probability)}` : "";
  if (!answer.answer || answer.start === null) {
    return [headline(element("strong", {}, "The passage has no answer"), certainty),
      element("p", { class: "passage" }, state.text), ...otherAnswers(answer)];
  }
  const markOf = ({ start, end }) => element("mark", { class: "entity hue-0" },
    state.text.slice(start, end));
  return [headline(element("strong", {}, answer.answer), certainty),
    markedText(state.text, [answer], markOf), ...otherAnswers(answer)];
}

function otherAnswers({ alternatives = [] }) {
  const others = alternatives.filter(({ answer }) => answer);
  if (others.length === 0) return [];
  const rows = others.map(({ answer, probability }) => barRow(answer, probability, false));
  return [element("h3", {}, "Other answers"), element("ol", { class: "bars wide" }, ...rows)];
}

function renderChoice(answer, state) {
  const options = optionsOf(state);
  const ranked = answer.probabilities
    .map((value, place) => ({ value, place }))
    .sort((one, other) => other.value - one.value);
  const rows = ranked.map(({ value, place }) =>
    barRow(options[place], value, place === answer.choice));
  return [headline(element("strong", {}, options[answer.choice])),
    element("ol", { class: "bars wide" }, ...rows)];
}
