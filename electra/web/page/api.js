// Requests to the server that gave this page, and to no other.

const TOKEN = "electra-token";

/** A request that failed, with a sentence for the user. Status 0: the server did not answer. */
export class Failure extends Error {
  constructor(message, { status = 0, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }

  get canRepeat() {
    return [0, 429, 503].includes(this.status);
  }
}

/** Keep the token of the address for this tab, and take it out of the address bar. */
export function takeToken() {
  const address = new URL(window.location.href);
  const token = address.searchParams.get("token");
  if (token === null) return;
  saveToken(token);
  address.searchParams.delete("token");
  window.history.replaceState(null, "", address);
}

export function saveToken(token) {
  window.sessionStorage.setItem(TOKEN, token);
}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  const token = window.sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(
      "The server does not answer. Start `electra serve` again: this page continues by itself.",
    );
  }
  if (!response.ok) throw await readFailure(response);
  return response;
}

async function readFailure(response) {
  const seconds = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  let message = `The server answered with status ${response.status}. Reload the page.`;
  try {
    message = (await response.json()).error ?? message;
  } catch {
    // An answer that is no JSON is not the server's own: the status is all there is to say.
  }
  return new Failure(message, {
    status: response.status,
    retryAfter: Number.isNaN(seconds) ? null : seconds,
  });
}

async function postJSON(path, body, signal) {
  const response = await send(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  return response.json();
}

export async function fetchModels() {
  return (await send("/api/models")).json();
}

export async function fetchHealth() {
  return (await send("/api/health")).json();
}

export async function fetchCurves(model, after, signal) {
  const query = after === null ? "" : `?after=${after}`;
  return (await send(`/api/models/${model}/curves${query}`, { signal })).json();
}

export function judgeTokens(model, request, signal) {
  return postJSON(`/api/models/${model}/tokens`, request, signal);
}

export async function predict(model, input, signal) {
  const body = await postJSON(`/api/models/${model}/predict`, { inputs: [input] }, signal);
  return body.answers[0];
}

/** Return the text of the answered table. */
export async function predictTable(model, body, { type, columns, signal }) {
  const query = new URLSearchParams(columns).toString();
  const response = await send(`/api/models/${model}/table${query && `?${query}`}`, {
    method: "POST",
    headers: { "Content-Type": type },
    body,
    signal,
  });
  return response.text();
}
