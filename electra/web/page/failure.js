// What the page says when a request fails, and how it continues.

import { fetchHealth, saveToken } from "./api.js";
import { element } from "./dom.js";

const HEALTH_SECONDS = 2;

/** Return a box with the failure's sentence and the way on: a countdown, a field or a button. */
export function failureBox(failure, repeat) {
  const box = element("div", { class: "failure", role: "alert" });
  box.append(element("p", {}, failure.message ?? String(failure)));
  if (failure.status === 401) box.append(tokenForm());
  else if (failure.status === 0) waitForServer(box, repeat);
  else if (failure.canRepeat) countDown(box, failure.retryAfter ?? 3, repeat);
  if (repeat && failure.status !== 401) {
    box.append(element("button", { type: "button", onclick: repeat }, "Try again"));
  }
  return box;
}

function tokenForm() {
  const field = element("input", { type: "password", required: true, autocomplete: "off" });
  const submit = (event) => {
    event.preventDefault();
    saveToken(field.value.trim());
    window.location.reload();
  };
  return element(
    "form",
    { onsubmit: submit, class: "row" },
    element("label", {}, "Token ", field),
    element("button", {}, "Open"),
  );
}

/** Repeat the request when the server can take it, as long as the box is still shown. */
function countDown(box, seconds, repeat) {
  const note = element("p", { class: "muted" });
  box.append(note);
  let left = seconds;
  const tick = () => {
    if (left < seconds && !box.isConnected) return;
    if (left <= 0) {
      repeat?.();
      return;
    }
    note.textContent = `The page tries again in ${left} s.`;
    left -= 1;
    setTimeout(tick, 1000);
  };
  tick();
}

function waitForServer(box, repeat) {
  const look = async () => {
    if (!box.isConnected) return;
    try {
      if (!document.hidden) {
        await fetchHealth();
        repeat?.();
        return;
      }
    } catch {
      // Still away.
    }
    setTimeout(look, 1000 * HEALTH_SECONDS);
  };
  setTimeout(look, 1000 * HEALTH_SECONDS);
}
