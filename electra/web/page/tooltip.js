// One tooltip for all elements with data-tip: shown under the pointer and at the focus.

import { byId } from "./dom.js";

export function watchTips() {
  const show = (event) => {
    const owner = event.target.closest?.("[data-tip]");
    if (owner) showTip(owner);
    else hideTip();
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", hideTip);
  document.addEventListener("scroll", hideTip, { passive: true });
  document.documentElement.addEventListener("pointerleave", hideTip);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
  });
}

export function hideTip() {
  byId("tooltip").hidden = true;
}

function showTip(owner) {
  const tip = byId("tooltip");
  tip.textContent = owner.dataset.tip;
  tip.hidden = false;
  const place = owner.getBoundingClientRect();
  const widest = document.documentElement.clientWidth - tip.offsetWidth - 8;
  const left = place.left + place.width / 2 - tip.offsetWidth / 2;
  const above = place.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, Math.min(left, widest))}px`;
  tip.style.top = `${above > 4 ? above : place.bottom + 6}px`;
}
