// Elements built from data. Text goes in as text nodes: markup in it is shown and never read.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element with attributes, listeners (`onclick: function`) and children. */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svgElement(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set CSS variables: the page's security policy refuses style attributes. */
export function withVariables(node, variables) {
  for (const [name, value] of Object.entries(variables)) {
    node.style.setProperty(`--${name}`, String(value));
  }
  return node;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Say something to screen readers. */
export function announce(text) {
  const place = byId("announcement");
  if (place.textContent !== text) place.textContent = text;
}
