// A sentence as a pre-trained model sees it: words to hide, what the generator draws for them, and
// how sure the discriminator is that each token was replaced.

import { announce, element, withVariables } from "./dom.js";
import { hasDiscriminator, hasGenerator } from "./fields.js";
import { percent, whole } from "./numbers.js";

const SUSPICIOUS = 0.5;

/** Return the nodes that show one answer of the server about a text. */
export function renderTokens(model, state, result, actions) {
  const view = { model, text: state.text, result, actions };
  const nodes = [];
  if (result.cut) nodes.push(cutNote(model));
  nodes.push(sentence(view), summary(view));
  if (hasDiscriminator(model)) nodes.push(legend());
  const hidden = result.tokens.filter((token) => token.hidden);
  if (hidden.length > 0) {
    const cards = hidden.map((token) => candidateCard(token, view));
    nodes.push(element("h3", {}, "What the generator proposes"),
      element("div", { class: "cards" }, ...cards));
  }
  return nodes;
}

function cutNote(model) {
  return element("p", { class: "note" }, "The text is longer than the model reads: it is cut " +
    `after ${whole(model.max_length)} tokens, and the grey words are left out.`);
}

function tokensOf(index, { result }) {
  return result.tokens.filter((token) => token.word === index);
}

/** Return what stands at a token's place: its own text, or what was drawn for it. */
function standing(token, place, text) {
  if (!token.hidden) return text.slice(token.start, token.end) || token.text;
  const drawn = token.sampled?.text ?? "[MASK]";
  return place > 0 ? drawn.replace(/^##/, "") : drawn;
}

function sentence(view) {
  const { text, result, model } = view;
  const canHide = hasGenerator(model);
  const node = element("div", { class: "sentence", role: "group",
    "aria-label": canHide ? "Words: arrow keys move, Space hides, F2 edits"
      : "Words: arrow keys move, F2 edits" });
  let end = 0;
  result.words.forEach((word, index) => {
    node.append(text.slice(end, word.start), wordButton(word, index, view));
    end = word.end;
  });
  node.append(element("span", { class: result.cut ? "beyond" : null }, text.slice(end)));
  node.querySelector(".word")?.setAttribute("tabindex", "0");
  node.addEventListener("keydown", (event) => moveFocus(event, node));
  return node;
}

function wordButton(word, index, view) {
  const { text, actions, model } = view;
  const tokens = tokensOf(index, view);
  const original = text.slice(word.start, word.end);
  const isHidden = tokens.some((token) => token.hidden);
  const canHide = hasGenerator(model);
  const pieces = tokens.map((token, place) => pieceOf(token, place, text));
  const edit = () => editWord(button, { word, original, actions });
  const toggle = () => {
    button.setAttribute("aria-pressed", String(!isHidden));
    actions.toggleWord(word);
  };
  const button = element("button", {
    type: "button",
    class: "word",
    tabindex: "-1",
    "data-key": `word-${index}`,
    "data-tip": tokens.map((token, place) => tipOf(token, standing(token, place, text))).join("\n"),
    "aria-label": wordLabel(original, tokens, text),
    "aria-pressed": canHide ? String(isHidden) : null,
    onclick: canHide ? toggle : null,
    ondblclick: edit,
    onkeydown: (event) => { if (event.key === "F2") edit(); },
  }, element("span", { class: "pieces" }, ...pieces),
  element("span", { class: "was" }, isHidden ? element("s", {}, original) : null));
  return button;
}

function pieceOf(token, place, text) {
  const shown = standing(token, place, text);
  const piece = element("span", { class: "piece", "data-tip": tipOf(token, shown) }, shown);
  if (token.replaced === null) return piece;
  return withVariables(piece, { p: token.replaced.toFixed(4) });
}

function tipOf(token, shown) {
  const lines = [];
  if (token.replaced !== null) lines.push(`${shown}  replaced ${percent(token.replaced)}`);
  else lines.push(shown);
  if (token.sampled) lines.push(`drawn with ${percent(token.sampled.probability)}`);
  return lines.join("\n");
}

function wordLabel(original, tokens, text) {
  const isHidden = tokens.some((token) => token.hidden);
  const said = [original];
  if (isHidden) said.push(`hidden, drawn ${tokens.map((t, i) => standing(t, i, text)).join("")}`);
  const judged = tokens.filter((token) => token.replaced !== null);
  if (judged.length > 0) {
    said.push(`replaced ${percent(Math.max(...judged.map((token) => token.replaced)))}`);
  }
  return said.join(", ");
}

/** Move between words by arrow keys, so that the Tab key passes the sentence in one step. */
function moveFocus(event, node) {
  const words = [...node.querySelectorAll("button.word")];
  const at = words.indexOf(document.activeElement);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: words.length - 1 }[event.key];
  if (at < 0 || to === undefined || !words[to]) return;
  event.preventDefault();
  for (const word of words) word.tabIndex = -1;
  words[to].tabIndex = 0;
  words[to].focus();
}

/** Put a field in the place of a word: Enter takes the new word, Escape the old one. */
function editWord(button, { word, original, actions }) {
  const field = element("input", { class: "edit", "aria-label": `Instead of ${original}`,
    "data-key": button.dataset.key, spellcheck: "false" });
  field.value = original;
  field.size = Math.max(original.length, 3);
  let isOpen = true;
  const finish = (isTaken) => {
    if (!isOpen) return;
    isOpen = false; // leaving the document is a blur, which would finish it once more
    field.replaceWith(button);
    button.focus();
    if (isTaken && field.value !== original) actions.replaceWord(word, field.value);
  };
  field.addEventListener("blur", () => finish(true), { once: true });
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault(); // the word that takes the focus must not take the key too
    finish(event.key === "Enter");
  });
  button.replaceWith(field);
  field.select();
}

/** Return one line that says what is to be seen; screen readers hear it. */
function summary(view) {
  const { result, text, model } = view;
  const parts = [];
  const hidden = result.tokens.filter((token) => token.hidden);
  if (hidden.length > 0) {
    const same = hidden.filter((token) => token.sampled?.is_original).length;
    parts.push(`${hidden.length} hidden, ${same} drawn as it was.`);
  }
  const judged = result.tokens.filter((token) => token.replaced !== null);
  const suspects = judged.filter((token) => token.replaced >= SUSPICIOUS);
  if (judged.length > 0) {
    const worst = judged.reduce((most, token) => (token.replaced > most.replaced ? token : most));
    const place = tokensOf(worst.word, view).indexOf(worst);
    parts.push(`${suspects.length} of ${judged.length} tokens look replaced; most of all ` +
      `“${standing(worst, place, text)}” (${percent(worst.replaced)}).`);
  }
  if (hidden.length === 0 && hasGenerator(model)) {
    parts.push("Click a word to hide it, double-click to edit it.");
  }
  announce(parts.join(" "));
  return element("p", { class: "muted summary" }, parts.join(" "));
}

function legend() {
  return element("p", { class: "legend muted", "aria-hidden": "true" },
    "original", element("span", { class: "scale" }), "replaced");
}

function candidateCard(token, view) {
  const { text, actions } = view;
  const original = text.slice(token.start, token.end) || token.text;
  const isWholeWord = tokensOf(token.word, view).length === 1;
  const rows = token.candidates.map((candidate, rank) => candidateRow(candidate, {
    isDrawn: candidate.text === token.sampled?.text,
    isOriginal: candidate.text === token.text,
    use: isWholeWord ? () => actions.replaceWord(token, candidate.text) : null,
    key: `use-${token.word}-${token.start}-${rank}`,
  }));
  const drawn = token.sampled;
  const isListed = token.candidates.some((candidate) => candidate.text === drawn?.text);
  if (drawn && !isListed) {
    rows.push(candidateRow(drawn, { isDrawn: true, isOriginal: drawn.is_original,
      use: isWholeWord ? () => actions.replaceWord(token, drawn.text) : null,
      key: `use-${token.word}-${token.start}-drawn` }));
  }
  return element("section", { class: "card", "aria-label": `Candidates for ${original}` },
    element("h4", {}, original), element("ol", { class: "bars" }, ...rows));
}

function candidateRow({ text, probability }, { isDrawn, isOriginal, use, key }) {
  const marks = [];
  if (isDrawn) marks.push(element("em", {}, "drawn"));
  if (isOriginal) marks.push(element("em", {}, "original"));
  const bar = withVariables(element("span", { class: "bar" }), { share: probability.toFixed(4) });
  const parts = [element("span", { class: "name" }, text, ...marks), bar,
    element("span", { class: "value" }, percent(probability))];
  if (!use) return element("li", { class: "line" }, ...parts);
  return element("li", {}, element("button", { type: "button", class: "line", onclick: use,
    "data-key": key, "data-tip": "Put it into the text" }, ...parts));
}
