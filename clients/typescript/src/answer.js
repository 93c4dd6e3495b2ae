/** Answers as values or errors, and which of them allow to send the request again. */

import { Denied, Disabled, InvalidRequest, Misconfigured, NeverFits, NotConfigured } from "./errors.js";
import { NotAllowed, Unauthorized, Unavailable } from "./errors.js";
import { LIMITS, PEEK, USAGE } from "./request.js";
import { CHANGED, GRANTED, PROBLEM, REPORTED, SETTLED } from "./shape.js";

/** @import { WeirgateError } from "./errors.js" */
/** @import { Response } from "./transport.js" */

const FIRST_PAUSE_MS = 50;
const REMEDY = "check the agent's URL, and proxies before it";
/**
 * By the type of a problem: 404 is also an unknown path.
 *
 * @type {Map<string, typeof Unavailable>}
 */
const UNTIL_REPAIRED = new Map([
  ["limits-not-configured", NotConfigured],
  ["misconfigured", Misconfigured],
]);
/** What changes nothing, whatever becomes of it. */
const READS = [PEEK, USAGE, LIMITS];
/** An answer that has another shape leaves unknown what was done. */
const OF_CHANGES = [GRANTED, SETTLED, REPORTED, CHANGED];
const UTF_8 = new TextDecoder("utf-8", { fatal: true });

/** @import { Shape } from "./shape.js" */

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
   * It is random, so that requests which were refused together do not come back together, and never less than
   * `retryAfterMs`. Half of the time that is left after it stays for the attempt.
   *
   * @param {WeirgateError} failure
   * @param {boolean} isRepeatable
   * @param {number} [retryAfterMs]
   */
  pauseMs(failure, isRepeatable, retryAfterMs) {
    const leastMs = retryAfterMs ?? this.#pauseMs / 2;
    const leftMs = this.#deadline - performance.now() - leastMs;
    if (!isRepeatable || this.#left <= 0 || leftMs <= 0) throw failure;
    this.#left -= 1;
    const spreadMs = Math.min(Math.max(this.#pauseMs, leastMs), leftMs / 2);
    this.#pauseMs *= 2;
    return leastMs + Math.random() * spreadMs;
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
    if (after === undefined) return this.pauseMs(errorOf(response, problem), isRepeatable);
    // What cannot be read may ask for any time.
    const isTime = /^[0-9]{1,9}$/.test(after);
    return this.pauseMs(errorOf(response, problem), isRepeatable && isTime, isTime ? Number(after) * 1000 : undefined);
  }
}

/**
 * Returns the error of a request without an answer.
 *
 * @param {Error} cause
 * @param {string} path
 */
export function lost(cause, path) {
  if (READS.includes(path)) return new Unavailable(cause.message, "no", { cause });
  return new Unavailable(`${cause.message}; whether the request was applied is unknown`, "unknown", { cause });
}

/**
 * Returns the body of a success, which has a shape.
 *
 * @param {Response} response
 * @param {Shape} hasShape
 * @returns {Record<string, any>}
 */
export function valueOf(response, hasShape) {
  const found = jsonOf(response);
  if (hasShape(found)) return found;
  const message = "the answer is not one of the agent: is its URL right?";
  throw new Unavailable(message, OF_CHANGES.includes(hasShape) ? "unknown" : "no", { isTransient: false });
}

/**
 * Returns the end of a pause, from the answer to a report.
 *
 * @param {Response} response
 */
export function pausedUntil(response) {
  const { paused_until_ms: ms } = valueOf(response, REPORTED);
  return ms === null ? null : new Date(ms);
}

/**
 * Returns the fields that an HTTP service passes on to its own caller.
 *
 * @param {Response} response
 * @returns {Record<string, string>}
 */
export function rateLimitFields({ headers, hide }) {
  const isOurs = (/** @type {string} */ name) => name === "retry-after" || /^(x-)?ratelimit/.test(name);
  const found = Object.entries(headers).filter(([name]) => isOurs(name));
  return hide(Object.fromEntries(found.map(([name, value]) => [name, String(value)])));
}

/**
 * Returns the JSON of a body, or undefined.
 *
 * @param {Response} response
 */
function jsonOf({ body }) {
  try {
    return JSON.parse(UTF_8.decode(body));
  } catch {
    return undefined;
  }
}

/**
 * Returns the agent's problem, or an empty one. Nothing of another body is shown, because it may repeat the request with
 * its token.
 *
 * @param {Response} response
 * @returns {Record<string, any>}
 */
function problemOf(response) {
  try {
    const found = response.hide(jsonOf(response));
    return PROBLEM(found) ? found : {};
  } catch (error) {
    // So deep that it cannot be walked.
    if (error instanceof RangeError) return {};
    throw error;
  }
}

/**
 * @param {Response} response
 * @param {Record<string, any>} problem
 * @returns {WeirgateError}
 */
function errorOf(response, problem) {
  const { status } = response;
  const message = problem.detail || `the answer must be one of the agent, got ${status} of another server: ${REMEDY}`;
  const { applied = "unknown" } = problem;
  const Kind = UNTIL_REPAIRED.get(problem.type);
  if (!Kind && applied === "no" && status >= 400 && status < 500) return refusalOf(response, problem, message);
  const isTransient = !Kind && (status === 408 || status === 429 || status > 500);
  return new (Kind ?? Unavailable)(message, applied, { isTransient, status, grant: problem.grant });
}

/**
 * Returns the error of a request that the agent refused.
 *
 * @param {Response} response
 * @param {Record<string, any>} problem
 * @param {string} message
 * @returns {WeirgateError}
 */
function refusalOf(response, problem, message) {
  const { status } = response;
  const headers = rateLimitFields(response);
  if (status === 429) return new Denied(message, status, headers, problem);
  if (status === 413 && problem.blocking) return new NeverFits(message, status, headers, problem);
  if (status === 403 && problem.type === "limit-changes-not-allowed") return new NotAllowed(message);
  if (status === 403) return new Disabled(message, status, headers, problem);
  return status === 401 ? new Unauthorized(message) : new InvalidRequest(message);
}
