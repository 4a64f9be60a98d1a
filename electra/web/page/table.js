// A table that is dropped on the page comes back with answers.

import { Failure, predictTable } from "./api.js";
import { readRows } from "./csv.js";
import { announce, element } from "./dom.js";
import { failureBox } from "./failure.js";
import { Latest } from "./latest.js";
import { bytes, whole } from "./numbers.js";

const TYPES = {
  csv: "text/csv",
  tsv: "text/tab-separated-values",
  jsonl: "application/jsonl",
};
const COLUMNS = {
  text: "Column of the text",
  text_pair: "Column of the second text",
  words: "Column of the words",
  question: "Column of the question",
  context: "Column of the passage or context",
  options: "Columns of the options, with commas",
};
const PREVIEW_ROWS = 8;

/** The place to drop a table for one model, and the answered table. */
export class TablePanel {
  #latest = new Latest();
  #address = null;

  constructor(model, limits) {
    this.model = model;
    this.limits = limits;
    this.result = element("div", { class: "answer" });
    this.columns = Object.fromEntries(this.#columnNames().map((name) => [name,
      element("input", { name, spellcheck: "false", placeholder: "as in training" })]));
    this.node = element("article", { class: "panel", "aria-label": `Table for ${model.name}` },
      element("header", {}, element("h2", {}, `A table for ${model.name}`),
        element("p", { class: "muted" }, this.#rules())),
      this.#dropPlace(), this.#columnFields(), this.result);
  }

  stop() {
    this.#latest.stop();
    if (this.#address) URL.revokeObjectURL(this.#address);
  }

  #rules() {
    const { table_rows: rows, table_bytes: size } = this.limits;
    return "One row is one input; the first row names the columns. CSV, TSV or JSON Lines, up to " +
      `${whole(rows)} rows and ${bytes(size)}.`;
  }

  #columnNames() {
    const { kind, takes } = this.model;
    if (kind === "tag") return ["words"];
    if (kind === "span") return ["question", "context"];
    if (kind === "choose") return ["context", "options"];
    return takes === "text" ? ["text"] : ["text", "text_pair"];
  }

  #columnFields() {
    const fields = Object.entries(this.columns).map(([name, field]) =>
      element("label", { class: "field" }, element("span", {}, COLUMNS[name]), field));
    return element("div", { class: "row" }, ...fields);
  }

  #dropPlace() {
    const chooser = element("input", { type: "file", accept: ".csv,.tsv,.jsonl", class: "unseen",
      onchange: () => {
        if (chooser.files.length > 0) this.#take(chooser.files[0]);
        chooser.value = "";
      } });
    const place = element("label", { class: "drop" }, chooser,
      element("strong", {}, "Drop a table here"),
      element("span", { class: "muted" }, "or choose a file"));
    const over = (isOver) => (event) => {
      event.preventDefault();
      place.classList.toggle("over", isOver);
    };
    place.addEventListener("dragover", over(true));
    place.addEventListener("dragleave", over(false));
    place.addEventListener("drop", (event) => {
      over(false)(event);
      if (event.dataTransfer.files.length > 0) this.#take(event.dataTransfer.files[0]);
    });
    return place;
  }

  #take(file) {
    this.node.setAttribute("aria-busy", "true");
    const stop = () => {
      this.stop();
      this.#finish(element("p", { class: "muted" }, "Stopped. Nothing was answered."));
    };
    announce(`Answering ${file.name}`);
    this.result.replaceChildren(element("p", { class: "row working" },
      element("span", { class: "spinner", "aria-hidden": "true" }), `Answering ${file.name} …`,
      element("button", { type: "button", onclick: stop }, "Stop")));
    this.#latest.schedule((signal) => this.#answer(file, signal), 0);
  }

  async #answer(file, signal) {
    try {
      const type = this.#check(file);
      const columns = {};
      for (const [name, field] of Object.entries(this.columns)) {
        if (field.value.trim()) columns[name] = field.value.trim();
      }
      const text = await predictTable(this.model.model, file, { type, columns, signal });
      this.#finish(...this.#preview(file, text));
    } catch (failure) {
      if (failure.name === "AbortError") throw failure;
      const repeat = failure.canRepeat ? () => this.#take(file) : null;
      this.#finish(failureBox(failure, repeat));
    }
  }

  #finish(...nodes) {
    this.node.setAttribute("aria-busy", "false");
    this.result.replaceChildren(...nodes);
  }

  /** Return the file's media type; a file that the server would refuse is not sent. */
  #check(file) {
    const type = TYPES[file.name.split(".").pop().toLowerCase()];
    if (!type) {
      throw new Failure(`${file.name} is not a table that this page reads. Save it as .csv, .tsv ` +
        "or .jsonl and drop it again.", { status: 415 });
    }
    const most = this.limits.table_bytes;
    if (most && file.size > most) {
      throw new Failure(`${file.name} has ${bytes(file.size)} and the server takes ` +
        `${bytes(most)}. Split it, or use \`electra predict\` on the command line.`,
      { status: 413 });
    }
    if (file.size === 0) {
      throw new Failure(`${file.name} is empty. Drop a table with a row of column names and ` +
        "a row for each text.", { status: 400 });
    }
    return type;
  }

  #preview(file, text) {
    const [names = [], ...rows] = readRows(text, PREVIEW_ROWS + 1);
    if (this.#address) URL.revokeObjectURL(this.#address);
    this.#address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    const output = `${file.name.replace(/\.[^.]+$/, "")}-answers.csv`;
    announce(`${file.name} is answered. Download ${output}.`);
    const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
    const body = rows.map((row) =>
      element("tr", {}, ...row.map((cell) => element("td", {}, cell))));
    return [
      element("p", { class: "row" },
        element("a", { class: "button primary", href: this.#address, download: output },
          `Download ${output}`)),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "First rows" },
        element("table", {}, element("thead", {}, head), element("tbody", {}, ...body))),
      element("p", { class: "muted" }, rows.length < PREVIEW_ROWS
        ? "This is the whole table." : `The first ${PREVIEW_ROWS} rows; the file has them all.`),
    ];
  }
}
