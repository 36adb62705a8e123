// Requests to the server: relative to where it is mounted, with the token, and with errors that say what to do.

import { released } from "./dom.js";
import { session } from "./session.js";

/** The URL of the server, with a slash at its end. */
export const root = new URL(document.querySelector('meta[name="penstock-root"]').content, document.baseURI);
root.hash = "";
root.search = "";

/** An answer that is an error: `status`, `code`, `title`, `detail`, and the fields of its problem document. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `The server answered ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.code = problem.code ?? "";
    this.title = problem.title ?? "";
    this.detail = problem.detail ?? "";
    this.problem = problem;
  }
}

/** The server could not be reached, or the connection broke. */
export class Unreachable extends Error {
  constructor(cause) {
    super("The server cannot be reached. Check that it runs, and that this machine is connected.");
    this.name = "Unreachable";
    this.cause = cause;
  }
}

export const isAbort = (error) => error?.name === "AbortError";

/** Return the URL of a resource: its path without a leading slash, and parameters (null ones are left out). */
export function url(path, query = {}) {
  const address = new URL(path, root);
  for (const [name, value] of Object.entries(query)) {
    for (const each of [value].flat()) {
      if (each !== null && each !== undefined && each !== "") address.searchParams.append(name, each);
    }
  }
  return address;
}

/** Return the URL of a stream by its canonical path; `resource` is that of something about it. */
export const streamUrl = (path, query, resource = "") =>
  url(`v1/stream/${path}${resource && `/__ds/${resource}`}`, query);

/** Send a request and return the Response; throws ApiError, Unreachable or AbortError. */
export async function send(
  address,
  { method = "GET", headers = {}, body, signal, keepSession = false } = {},
) {
  const all = new Headers(headers);
  const token = session.token;
  if (token && !all.has("Authorization")) all.set("Authorization", `Bearer ${token}`);
  let response;
  try {
    response = await fetch(address, {
      method,
      headers: all,
      body,
      signal,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
    });
  } catch (error) {
    if (isAbort(error) || signal?.aborted) throw error;
    throw new Unreachable(error);
  }
  if (method === "HEAD") await response.arrayBuffer(); // there is none; a browser that is not asked calls it a failure
  if (response.ok || response.status === 304) return response;
  const error = new ApiError(response.status, await problemOf(response));
  if (error.status === 401 && !keepSession) session.ended(error);
  throw error;
}

async function problemOf(response) {
  try {
    const content = await response.json();
    // Subscriptions answer {"error": {"code", "message"}}.
    if (content?.error && typeof content.error === "object")
      return { code: content.error.code, detail: content.error.message };
    return content && typeof content === "object" ? content : {};
  } catch {
    return {};
  }
}

/** GET a JSON document. It is returned while nothing on the page is pressed, so that it can be drawn at once. */
export async function get(path, query = {}, options = {}) {
  const content = await (await send(url(path, query), options)).json();
  await released();
  return content;
}

/** Send a JSON document with a method; returns the answer, null if it has no body. */
export async function write(method, path, content, { query = {}, headers = {}, ...options } = {}) {
  const body = content === undefined ? undefined : JSON.stringify(content);
  const type = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await send(url(path, query), {
    method,
    body,
    headers: { ...type, ...headers },
    ...options,
  });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/** Yield the pages of a listing that is continued by `after` and `next`. */
export async function* pages(path, query = {}, options = {}) {
  let after = query.after ?? null;
  do {
    const page = await get(path, { ...query, after }, options);
    yield page;
    after = page.next;
  } while (after !== null && after !== undefined);
}

/** Wait; ends early with an AbortError. */
export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(new DOMException("aborted", "AbortError"));
    const timer = setTimeout(done, ms);
    function done() {
      signal?.removeEventListener("abort", ended);
      resolve();
    }
    function ended() {
      clearTimeout(timer);
      reject(new DOMException("aborted", "AbortError"));
    }
    signal?.addEventListener("abort", ended, { once: true });
  });
}

/**
 * Call a function at once, after `firstMs`, and then every `ms` while the page is visible, until the signal aborts.
 */
export async function poll(ms, signal, action, firstMs = ms) {
  try {
    for (let wait = firstMs; !signal.aborted; wait = ms) {
      if (!document.hidden) await action();
      await sleep(wait, signal);
    }
  } catch (error) {
    if (!isAbort(error)) throw error;
  }
}
