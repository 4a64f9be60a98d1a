// How numbers are written.

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const compact = (value) => COMPACT.format(value);
export const whole = (value) => WHOLE.format(value);

export const bytes = (count) => COMPACT.format(count).replace(/[A-Z]?$/, " $&B");

/** Write a probability with the digits that tell it from 0 and from 1. */
export function percent(probability) {
  const value = 100 * probability;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  if (value < 100 && value > 99.9) return "> 99.9 %";
  return `${value.toFixed(1)} %`;
}

/** Write a value of a curve. */
export function measured(value, group) {
  if (!Number.isFinite(value)) return "–";
  if (group === "speed") return whole(value);
  if (group === "rate") return value === 0 ? "0" : value.toExponential(2);
  return value.toFixed(3);
}
