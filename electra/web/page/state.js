// What the user has chosen and typed. The address holds it all, so that a view can be shared.

const DEFAULTS = {
  model: 0,
  beside: null,
  view: null, // what the model has most to show in
  text: "",
  pair: "",
  question: "",
  options: "",
  hidden: [],
  seed: 0,
  temperature: 1,
};

const WHOLE = { model: true, beside: true, seed: true };

function readSpans(text) {
  const spans = text.split(",").map((span) => span.split("-").map(Number));
  return spans.filter(([start, end]) => start >= 0 && end > start);
}

function readField(name, text) {
  if (name === "hidden") return readSpans(text);
  if (name === "temperature") return Math.min(Math.max(Number(text) || 1, 0.1), 2);
  if (WHOLE[name]) return /^\d{1,9}$/.test(text) ? Number(text) : DEFAULTS[name];
  return text;
}

/** Return the state that an address's part behind # describes; what is wrong there is left out. */
export function readState(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const state = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) {
    if (given.has(name)) state[name] = readField(name, given.get(name));
  }
  return state;
}

export function writeState(state) {
  const kept = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const text = name === "hidden" ? value.map((span) => span.join("-")).join(",") : `${value}`;
    const isDefault = value === DEFAULTS[name] || (name === "hidden" && value.length === 0);
    if (!isDefault) kept.set(name, text);
  }
  return `#${kept}`;
}

/** Move hidden stretches along when the text is edited; a stretch that is edited is shown. */
export function moveSpans(spans, before, after) {
  const shorter = Math.min(before.length, after.length);
  let head = 0;
  while (head < shorter && before[head] === after[head]) head += 1;
  let tail = 0;
  while (tail < shorter - head && before.at(-1 - tail) === after.at(-1 - tail)) tail += 1;
  const shift = after.length - before.length;
  const moved = [];
  for (const [start, end] of spans) {
    if (end <= head) moved.push([start, end]);
    else if (start >= before.length - tail) moved.push([start + shift, end + shift]);
  }
  return moved;
}
