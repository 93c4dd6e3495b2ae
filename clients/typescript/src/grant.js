/** What a granted acquire holds, and the calls that settle it. */

/** @import { Amounts, CallOptions, LimitStatus, SettleOptions, Settlement } from "../index.js" */
/** @import { Request } from "./request.js" */
/** @import { Response } from "./transport.js" */

import { rateLimitFields, valueOf } from "./answer.js";
import { InvalidRequest, Refused, Unavailable } from "./errors.js";
import { settle } from "./request.js";
import { isShort, limitStatus } from "./values.js";

/** @typedef {(request: Request, signal: AbortSignal | undefined) => Promise<Response>} Call */

export class Grant {
  /** @type {Call} */
  #call;
  /** @type {Response | undefined} */
  #response;
  /** @type {Record<string, any>} */
  #answer = {};
  /** @type {readonly LimitStatus[] | undefined} */
  #limits;
  // A restored grant may have a lease.
  #mayHaveLease = true;
  #token = "";
  #isEnded = false;
  #inFlight = 0;
  #hasFailed = false;
  /** @type {readonly Amounts[]} */
  #amounts = [];
  /** @type {Date | null} */
  #expiresAt = null;

  /**
   * @param {Call} call
   * @param {Response | string} of the answer, or the token
   */
  constructor(call, of) {
    this.#call = call;
    if (typeof of === "string") {
      this.#token = of;
    } else {
      this.#response = of;
      this.#answer = valueOf(of);
      this.#update(this.#answer);
    }
  }

  get token() {
    return this.#token;
  }

  get amounts() {
    return this.#amounts;
  }

  get expiresAt() {
    return this.#expiresAt;
  }

  get isEnded() {
    return this.#isEnded;
  }

  get isUncertain() {
    return this.#hasFailed || this.#inFlight > 0;
  }

  get limits() {
    this.#limits ??= (this.#answer.limits ?? []).map(limitStatus);
    return /** @type {readonly LimitStatus[]} */ (this.#limits);
  }

  /** @returns {readonly string[]} */
  get wouldDeny() {
    /** @type {LimitStatus[]} */
    const waived = (this.#answer.would_deny?.limits ?? []).map(limitStatus);
    return waived.filter(isShort).map((status) => status.limit);
  }

  /** @returns {string | null} */
  get degraded() {
    return this.#answer.degraded?.reason ?? null;
  }

  get headers() {
    return this.#response ? rateLimitFields(this.#response) : {};
  }

  /** @param {string} limit */
  amount(limit) {
    return this.#amounts.find((amounts) => limit in amounts)?.[limit] ?? 0;
  }

  /** @param {string} limit */
  remaining(limit) {
    return this.limits.find((status) => status.limit === limit)?.available;
  }

  /**
   * @param {Amounts} actual
   * @param {SettleOptions} [options]
   */
  async adjust(actual, options) {
    return this.#settle({ adjust: actual }, options);
  }

  /**
   * @param {Amounts} unused
   * @param {SettleOptions} [options]
   */
  async giveBack(unused, options) {
    return this.#settle({ give_back: unused }, options);
  }

  /**
   * @param {Amounts} more
   * @param {SettleOptions} [options]
   */
  async takeMore(more, options) {
    await this.#settle({ take_more: more }, options);
  }

  /**
   * @param {number} lastsMs
   * @param {CallOptions} [options]
   */
  async renew(lastsMs, options) {
    return this.#settle({ renew_ms: lastsMs }, options);
  }

  /**
   * @param {Amounts} [actual]
   * @param {CallOptions} [options]
   * @returns {Promise<Settlement>}
   */
  async release(actual, options) {
    if (!actual && !this.#mayHaveLease && !this.#isEnded) {
      // Changes nothing in the table.
      this.#isEnded = true;
      return "settled";
    }
    return this.#settle({ adjust: actual, end: "release" }, options);
  }

  /** @param {CallOptions} [options] */
  async rollBack(options) {
    return this.#settle({ end: "roll_back" }, options);
  }

  /**
   * @param {Record<string, unknown>} changes
   * @param {SettleOptions} [options]
   * @returns {Promise<Settlement>}
   */
  async #settle(changes, { bucket, signal } = {}) {
    if (this.#isEnded) throw new InvalidRequest("the grant has ended, so nothing of it can change: acquire again");
    this.#inFlight += 1;
    try {
      const found = valueOf(await this.#call(settle(this.#token, { ...changes, bucket }), signal));
      this.#update(found);
      return found.settlement;
    } catch (error) {
      // A decision that refuses a settlement changes nothing.
      this.#hasFailed ||= !(error instanceof Refused);
      // The old token is of amounts that are not held any more.
      if (error instanceof Unavailable && error.grant !== null) this.#token = error.grant;
      throw error;
    } finally {
      this.#inFlight -= 1;
    }
  }

  /** @param {Record<string, any>} found */
  #update({ grant, amounts, lease }) {
    this.#isEnded = grant === null;
    if (this.#isEnded) return;
    this.#token = grant;
    this.#amounts = amounts;
    this.#expiresAt = lease === null ? null : new Date(lease.expires_at_ms);
    this.#mayHaveLease = lease !== null;
  }
}
