// Texts to begin with, for each kind of model.

import { hasGenerator } from "./fields.js";

const SENTENCES = [
  { text: "The chef cooked the meal in a small kitchen near the river." },
  { text: "In winter the old bridge across the river is covered with snow." },
  { text: "She opened the window and listened to the song of the birds." },
];
const MISTAKES = [  // for a discriminator without a generator: one word is wrong
  { text: "The judge sentenced the thief to ten years in butter." },
  { text: "I would like a glass of table, please." },
  { text: "He have been in London for three years." },
];
const PAIRS = [
  { text: "A man is playing a guitar.", pair: "Somebody is making music." },
  { text: "The shop opens at nine.", pair: "The shop is closed all day." },
];
const OPINIONS = [
  { text: "A warm, funny film that I would gladly see again." },
  { text: "Two hours of my life that nobody gives back to me." },
];
const NAMES = [
  { text: "Marie Curie moved from Warsaw to Paris in 1891." },
  { text: "Anna works for the United Nations in Geneva." },
];
const QUESTIONS = [
  {
    question: "Where was the bridge built?",
    text:
      "The old bridge was built in Mostar in the sixteenth century. It was destroyed in a war " +
      "and opened again in 2004.",
  },
];
const CHOICES = [
  {
    text: "It began to rain, so Anna",
    options: "opened her umbrella.\nwatered the garden.\nate the bridge.",
  },
];

/** Return examples for a model, each with the fields of the form that it fills. */
export function examplesFor(model) {
  if (model.kind === "pretraining") return hasGenerator(model) ? SENTENCES : MISTAKES;
  if (model.kind === "tag") return NAMES;
  if (model.kind === "span") return QUESTIONS;
  if (model.kind === "choose") return CHOICES;
  return model.takes === "pair" ? PAIRS : OPINIONS;
}
