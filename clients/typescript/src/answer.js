/** Answers as values or errors, and which of them allow to send the request again. */

import { Denied, Disabled, InvalidRequest, NeverFits, Unauthorized, Unavailable } from "./errors.js";
import { PEEK } from "./request.js";

/** @import { WeirgateError } from "./errors.js" */
/** @import { Response } from "./transport.js" */

const FIRST_PAUSE_MS = 50;

/** Decides whether a request is sent again: only if nothing of it was applied. */
export class Attempts {
  #left;
  #deadline;
  #pauseMs = FIRST_PAUSE_MS;

  /**
   * @param {number} retries
   * @param {number} deadline
   */
  constructor(retries, deadline) {
    this.#left = retries;
    this.#deadline = deadline;
  }

  get remainingMs() {
    return Math.max(1, this.#deadline - performance.now());
  }

  /**
   * Returns the time to wait before the next attempt, or throws the failure.
   *
   * @param {WeirgateError} failure
   * @param {boolean} isRepeatable
   * @param {number} [retryAfterMs]
   */
  pauseMs(failure, isRepeatable, retryAfterMs) {
    const pauseMs = retryAfterMs ?? this.#pauseMs * (0.5 + Math.random());
    if (!isRepeatable || this.#left <= 0 || pauseMs >= this.remainingMs) throw failure;
    this.#left -= 1;
    this.#pauseMs *= 2;
    return pauseMs;
  }

  /**
   * Returns the time to wait after an answer that is no success, or throws it as an error.
   *
   * @param {Response} response
   */
  pauseMsAfter(response) {
    const problem = problemOf(response);
    const after = response.headers["retry-after"];
    // The agent says so only if nothing was applied.
    const isRepeatable = problem.retry === true && problem.applied === "no";
    return this.pauseMs(
      errorOf(response, problem),
      isRepeatable,
      after !== undefined && /^\d+$/.test(after) ? Number(after) * 1000 : undefined,
    );
  }
}

/**
 * Returns the error of a request without an answer.
 *
 * @param {Error} cause
 * @param {string} path
 */
export function lost(cause, path) {
  if (path === PEEK) return new Unavailable(cause.message, "no", { cause });
  return new Unavailable(`${cause.message}; whether the request was applied is unknown`, "unknown", { cause });
}

/**
 * Returns the body of a success.
 *
 * @param {Response} response
 * @returns {Record<string, any>}
 */
export function valueOf(response) {
  try {
    return objectOf(response);
  } catch (cause) {
    const message = "the agent's answer cannot be read: is its URL right?";
    throw new Unavailable(message, "unknown", { isTransient: false, cause });
  }
}

/**
 * Returns the fields that an HTTP service passes on to its own caller.
 *
 * @param {Response} response
 * @returns {Record<string, string>}
 */
export function rateLimitFields({ headers }) {
  const isOurs = (/** @type {string} */ name) => name === "retry-after" || /^(x-)?ratelimit/.test(name);
  return Object.fromEntries(
    Object.entries(headers)
      .filter(([name]) => isOurs(name))
      .map(([name, value]) => [name, String(value)]),
  );
}

/**
 * @param {Response} response
 * @returns {Record<string, any>}
 */
function objectOf({ body }) {
  const found = JSON.parse(body);
  if (typeof found !== "object" || found === null) throw new SyntaxError("it is no JSON object");
  return found;
}

/** @param {Response} response */
function problemOf(response) {
  try {
    return objectOf(response);
  } catch {
    return { detail: response.body.slice(0, 200) };
  }
}

/**
 * @param {Response} response
 * @param {Record<string, any>} problem
 * @returns {WeirgateError}
 */
function errorOf(response, problem) {
  const { status } = response;
  const message = String(problem.detail || `the agent answered ${status}`);
  const headers = rateLimitFields(response);
  if (status === 429) return new Denied(message, status, headers, problem);
  if (status === 413 && problem.blocking) return new NeverFits(message, status, headers, problem);
  if (status === 403) return new Disabled(message, status, headers, problem);
  if (status === 401) return new Unauthorized(message);
  if (status < 500 && problem.applied !== "unknown") return new InvalidRequest(message);
  // Without the word of the agent, such as from a proxy, nothing is known.
  const applied = problem.applied === "no" ? "no" : "unknown";
  return new Unavailable(message, applied, { isTransient: status > 500, status, grant: problem.grant });
}
