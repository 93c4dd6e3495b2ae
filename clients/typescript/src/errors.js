/** What a call throws instead of an answer. */

export class WeirgateError extends Error {
  get name() {
    return this.constructor.name;
  }
}

export class InvalidRequest extends WeirgateError {}

export class Unauthorized extends WeirgateError {}

export class NotAllowed extends WeirgateError {}

export class Refused extends WeirgateError {
  /**
   * @param {string} message
   * @param {number} status
   * @param {Record<string, string>} headers
   * @param {Record<string, any>} problem
   */
  constructor(message, status, headers, problem) {
    super(message);
    this.status = status;
    this.headers = headers;
    this.problem = problem;
  }

  /** @returns {readonly string[]} */
  get limits() {
    return this.problem["violated-policies"] ?? [];
  }

  /** @returns {string | null} */
  get missingPlan() {
    return this.problem.missing_plan ?? null;
  }

  /** @returns {import("../index.js").Blocking | null} */
  get blocking() {
    const found = this.problem.blocking;
    if (!found) return null;
    return { limit: found.policy, capacity: found.quota, remaining: found.remaining, requested: found.requested };
  }
}

export class Denied extends Refused {
  /** @returns {number | null} */
  get retryAfterMs() {
    return this.problem.retry_after_ms ?? null;
  }

  /** @returns {number | null} */
  get startsInMs() {
    return this.problem.starts_in_ms ?? null;
  }

  get isPaused() {
    return this.problem.paused === true;
  }
}

export class NeverFits extends Refused {}

export class Disabled extends Refused {}

export class Unavailable extends WeirgateError {
  /**
   * @param {string} message
   * @param {"no" | "unknown"} applied
   * @param {{ isTransient?: boolean, status?: number | null, grant?: string | null, cause?: unknown }} [more]
   */
  constructor(message, applied, { isTransient = true, status = null, grant = null, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.applied = applied;
    this.isTransient = isTransient;
    this.grant = grant;
    this.status = status;
  }
}

export class Misconfigured extends Unavailable {}

export class NotConfigured extends Misconfigured {}
