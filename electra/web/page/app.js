// The page: which models and which view are shown, and what happens when the user changes them.

import { Failure, fetchModels, takeToken } from "./api.js";
import { CurvesPanel } from "./curves.js";
import { byId, element } from "./dom.js";
import { failureBox } from "./failure.js";
import { isFinetuned } from "./fields.js";
import { InputForm } from "./form.js";
import { Panel } from "./panel.js";
import { moveSpans, readState, writeState } from "./state.js";
import { TablePanel } from "./table.js";
import { watchTips } from "./tooltip.js";

const VIEWS = { try: "Try", curves: "Curves", table: "Table" };
const NETWORKS_PAUSE = 5000;
const CLICK_PAUSE = 180; // leaves time for a second click: several words, or a word to edit

const page = {
  models: [], limits: {}, state: readState(""), panels: [], form: null, timer: null, hash: "",
};

async function start() {
  try {
    const answer = await fetchModels();
    if (answer.models.length === 0) {
      throw new Failure("The server has no model. Start it as `electra serve MODEL`.",
        { status: 404 });
    }
    page.models = answer.models;
    page.limits = answer.limits ?? {};
    byId("version").textContent = `electra ${answer.version ?? ""}`;
  } catch (failure) {
    byId("starting").hidden = true;
    byId("problem").replaceChildren(failureBox(failure, start));
    return;
  }
  byId("problem").replaceChildren();
  byId("starting").hidden = true;
  fillPickers();
  readAddress();
  if (page.models.some(({ note }) => note)) setTimeout(lookForNetworks, NETWORKS_PAUSE);
}

/** Show the networks of a run as soon as it has exported them. */
async function lookForNetworks() {
  try {
    const { models } = document.hidden ? page : await fetchModels();
    const isNew = models.some((model, index) => model.note !== page.models[index]?.note);
    page.models = models;
    if (isNew) readAddress();
  } catch {
    // The panels say that the server is away.
  }
  if (page.models.some(({ note }) => note)) setTimeout(lookForNetworks, NETWORKS_PAUSE);
}

// ---- models and views -------------------------------------------------------------------------

function fillPickers() {
  const options = () => page.models.map((model) => element("option",
    { value: model.model }, `${model.name} (${model.task || model.kind})`));
  byId("model").replaceChildren(...options());
  byId("beside").replaceChildren(element("option", { value: "" }, "no other"), ...options());
  byId("model").disabled = false;
  byId("beside").disabled = false;
  byId("compare").hidden = page.models.length < 2;
}

function readAddress() {
  clearTimeout(page.timer);
  page.hash = window.location.hash;
  const state = readState(page.hash);
  const exists = (index) => page.models.some(({ model }) => model === index);
  if (!exists(state.model)) state.model = page.models[0].model;
  if (!exists(state.beside) || state.beside === state.model) state.beside = null;
  page.state = state;
  if (!availableViews().includes(state.view)) state.view = defaultView();
  render();
}

function shownModels() {
  const { model, beside } = page.state;
  return [model, beside].filter((index) => index !== null)
    .map((index) => page.models.find((one) => one.model === index));
}

/** A run that has not exported its networks yet has curves alone. */
function defaultView() {
  const [model] = shownModels();
  return model.note && model.has_curves ? "curves" : "try";
}

function availableViews() {
  const models = shownModels();
  const views = ["try"];
  if (models.some((model) => model.has_curves)) views.push("curves");
  if (models.some(isFinetuned)) views.push("table");
  return views;
}

function render() {
  const { state } = page;
  for (const panel of page.panels) panel.stop();
  page.form = null;
  byId("model").value = state.model;
  byId("beside").value = state.beside ?? "";
  for (const option of byId("beside").options) option.disabled = option.value === `${state.model}`;
  document.title = `${shownModels().map(({ name }) => name).join(" and ")} · electra`;
  renderViews();
  for (const view of Object.keys(VIEWS)) byId(view).hidden = view !== state.view;
  for (const holder of ["panels", "curves", "table"]) byId(holder).replaceChildren();
  ({ try: renderTry, curves: renderCurves, table: renderTable })[state.view]();
  for (const panel of page.panels) panel.update?.();
}

function renderViews() {
  const views = availableViews();
  const links = views.map((view) => element("a", {
    "data-view": view,
    "aria-current": view === page.state.view ? "page" : null,
  }, VIEWS[view]));
  byId("views").replaceChildren(...links);
  byId("views").hidden = views.length < 2;
  linkViews();
}

/** Let the other views keep what is typed here. */
function linkViews() {
  for (const link of byId("views").children) {
    link.href = writeState({ ...page.state, view: link.dataset.view });
  }
}

function renderTry() {
  const models = shownModels();
  const state = () => page.state;
  page.form = new InputForm(byId("inputs"), { models, state, change });
  const actions = { toggleWord, replaceWord };
  page.panels = models.map((model) => new Panel(model, { limits: page.limits, state, actions }));
  byId("panels").replaceChildren(...page.panels.map(({ node }) => node));
}

function renderCurves() {
  page.panels = shownModels().filter((model) => model.has_curves)
    .map((model) => new CurvesPanel(model));
  byId("curves").replaceChildren(...page.panels.map(({ node }) => node));
}

function renderTable() {
  page.panels = shownModels().filter(isFinetuned)
    .map((model) => new TablePanel(model, page.limits));
  byId("table").replaceChildren(...page.panels.map(({ node }) => node));
}

// ---- what the user changes --------------------------------------------------------------------

/** Take changed values, show them, and ask the models after a pause. */
function change(values, pause) {
  Object.assign(page.state, values);
  page.form.refresh();
  linkViews();
  for (const panel of page.panels) panel.update(pause);
  clearTimeout(page.timer);
  page.timer = setTimeout(writeAddress, pause);
}

function writeAddress() {
  // The user has gone to another address, and the event that says so is on its way.
  if (window.location.hash !== page.hash) return;
  window.history.replaceState(null, "", writeState(page.state));
  page.hash = window.location.hash;
}

function toggleWord(word) {
  const apart = ([start, end]) => end <= word.start || word.end <= start;
  const others = page.state.hidden.filter(apart);
  const wasHidden = others.length < page.state.hidden.length;
  change({ hidden: wasHidden ? others : [...others, [word.start, word.end]] }, CLICK_PAUSE);
}

function replaceWord(word, replacement) {
  const { text, hidden } = page.state;
  const kept = hidden.filter(([start, end]) => end <= word.start || word.end <= start);
  const edited = text.slice(0, word.start) + replacement + text.slice(word.end);
  change({ text: edited, hidden: moveSpans(kept, text, edited) }, 0);
}

function choose(values) {
  clearTimeout(page.timer);
  window.location.hash = writeState({ ...page.state, ...values });
}

function watchUser() {
  byId("model").addEventListener("change", (event) => {
    choose({ model: Number(event.target.value) });
  });
  byId("beside").addEventListener("change", (event) => {
    choose({ beside: event.target.value === "" ? null : Number(event.target.value) });
  });
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  // A file dropped beside its place would open in this tab and lose what was typed.
  for (const kind of ["dragover", "drop"]) {
    window.addEventListener(kind, (event) => event.preventDefault());
  }
  window.addEventListener("hashchange", () => { if (page.models.length > 0) readAddress(); });
}

takeToken();
watchTips();
watchUser();
start();
