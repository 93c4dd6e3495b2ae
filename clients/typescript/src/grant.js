/** What a granted acquire holds, and the calls that settle it. */

/** @import { Amounts, CallOptions, LimitStatus, SettleOptions, Settlement, VendorResponse } from "../index.js" */
/** @import { Request } from "./request.js" */
/** @import { Response } from "./transport.js" */

import { pausedUntil, rateLimitFields, valueOf } from "./answer.js";
import * as check from "./check.js";
import { InvalidRequest, Refused, Unavailable, WeirgateError } from "./errors.js";
import { adjustment, ending, givingBack, renewal, saying, settle, takingMore } from "./request.js";
import { GRANTED, SETTLED } from "./shape.js";
import { isShort, limitStatus } from "./values.js";
import { WITHOUT_AGENT } from "./without-agent.js";

/**
 * What a grant needs of its client. `keep` keeps in mind what goes on after its caller has left.
 *
 * @typedef {object} Calls
 * @property {(request: Request, signal?: AbortSignal, deadline?: number) => Promise<Response>} call
 * @property {<T>(settling: Promise<T>) => Promise<T>} keep
 * @property {number} answerTimeoutMs
 */
/** @typedef {Record<string, unknown>} Changes */

const NO_TURN = "an earlier settlement of the grant is still in flight: try again";
const OF_CALL = ["signal"];
const OF_SETTLEMENT = ["bucket", "signal"];

export class Grant {
  /** @type {Calls} */
  #calls;
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
  /**
   * The end of the settlements that have begun.
   *
   * @type {Promise<void>}
   */
  #settled = Promise.resolve();
  #hasFailed = false;
  #mayCountTwice = false;
  /** @type {readonly Amounts[]} */
  #amounts = [];
  /** @type {Date | null} */
  #expiresAt = null;

  /**
   * @param {Calls} calls
   * @param {Response | string} of the answer, or the token
   */
  constructor(calls, of) {
    this.#calls = calls;
    if (typeof of === "string") {
      this.#token = of;
    } else {
      this.#response = of;
      this.#answer = valueOf(of, GRANTED);
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

  /** @returns {Date | null} */
  get startsAt() {
    const at = this.#answer.starts_at_ms;
    return at === undefined ? null : new Date(at);
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

  /** @returns {string | null} */
  get missingPlan() {
    return this.#answer.missing_plan ?? null;
  }

  get headers() {
    return this.#response ? rateLimitFields(this.#response) : {};
  }

  /** @param {string} limit */
  amount(limit) {
    return this.#amounts.find((amounts) => Object.hasOwn(amounts, limit))?.[limit] ?? 0;
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
    return this.#settle(({ bucket }) => adjustment(actual, bucket), OF_SETTLEMENT, options);
  }

  /**
   * @param {Amounts} unused
   * @param {SettleOptions} [options]
   */
  async giveBack(unused, options) {
    return this.#settle(({ bucket }) => givingBack(unused, bucket), OF_SETTLEMENT, options);
  }

  /**
   * @param {Amounts} more
   * @param {SettleOptions} [options]
   */
  async takeMore(more, options) {
    await this.#settle(({ bucket }) => takingMore(more, bucket), OF_SETTLEMENT, options);
  }

  /**
   * @param {number} lastsMs
   * @param {CallOptions} [options]
   */
  async renew(lastsMs, options) {
    return this.#settle(() => renewal(lastsMs), OF_CALL, options);
  }

  /**
   * @param {Amounts} [actual]
   * @param {CallOptions} [options]
   * @returns {Promise<Settlement>}
   */
  async release(actual, options) {
    return this.#settle(() => ending("release", actual), OF_CALL, options);
  }

  /** @param {CallOptions} [options] */
  async rollBack(options) {
    return this.#settle(() => ending("roll_back"), OF_CALL, options);
  }

  /**
   * It changes nothing of the grant, so it is none of its settlements.
   *
   * @param {VendorResponse} response
   * @param {CallOptions} [options]
   */
  async vendorSaid(response, options = {}) {
    try {
      const said = saying(response);
      const signal = check.signal(check.fields("options", options, OF_CALL).signal);
      return this.#token === WITHOUT_AGENT ? null : pausedUntil(await this.#calls.call(settle(this.#token, said), signal));
    } catch (error) {
      // The vendor has answered, so the work is done and its tokens are used.
      this.#hasFailed = true;
      throw error;
    }
  }

  /** Releases the grant of an `await using`. A failure is a process warning. */
  async [Symbol.asyncDispose]() {
    await finishQuietly(this, () => this.release());
  }

  /**
   * Returns what `console.log` shows: not the token, which settles the grant.
   *
   * @param {number} _
   * @param {object} options
   * @param {(value: unknown, options: object) => string} inspect
   */
  [Symbol.for("nodejs.util.inspect.custom")](_, options, inspect) {
    return `Grant ${inspect({ amounts: this.#amounts, expiresAt: this.#expiresAt, isEnded: this.#isEnded }, options)}`;
  }

  /**
   * Settles. A signal ends the wait for the answer, and not the settlement.
   *
   * @param {(options: SettleOptions) => Changes} changes
   * @param {readonly string[]} known
   * @param {SettleOptions} [options]
   * @returns {Promise<Settlement>}
   */
  async #settle(changes, known, options = {}) {
    /** @type {AbortSignal | undefined} */
    let signal;
    const settling = this.#settleWhole(() => {
      const given = check.fields("options", options, known);
      signal = check.signal(given.signal);
      return changes(given);
    });
    return unlessAborted(this.#calls.keep(settling), signal);
  }

  /**
   * Settles, one settlement after the other: each sends the text that the one before it left, because an answer that came
   * out of order would bring amounts back that are not held any more.
   *
   * @param {() => Changes} changes
   * @returns {Promise<Settlement>}
   */
  async #settleWhole(changes) {
    const deadline = performance.now() + this.#calls.answerTimeoutMs;
    const ahead = this.#settled;
    let end = () => {};
    /** @type {Promise<void>} */
    const ended = new Promise((resolve) => (end = resolve));
    this.#settled = ahead.then(() => ended);
    let countsTwice = false;
    this.#inFlight += 1;
    try {
      this.#checkNotEnded();
      const changed = changes();
      const isRelease = changed.end === "release" && !("adjust" in changed);
      if (isRelease && !this.#mayHaveLease) {
        // Changes nothing in the table.
        this.#isEnded = true;
        return "settled";
      }
      if (!isRelease && this.#inFlight > 1) {
        // A release without amounts counts once by any text, so it waits for none.
        await ahead;
        this.#checkNotEnded();
      }
      if (this.#token === WITHOUT_AGENT) {
        this.#isEnded = "end" in changed;
        return "settled";
      }
      if (!isRelease && !("renew_ms" in changed)) {
        this.#checkNoDoubt();
        countsTwice = !("end" in changed && this.#expiresAt !== null);
      }
      if (performance.now() >= deadline) throw new Unavailable(NO_TURN, "no");
      const found = valueOf(await this.#calls.call(settle(this.#token, changed), undefined, deadline), SETTLED);
      this.#update(found);
      return found.settlement;
    } catch (error) {
      // A decision that refuses a settlement changes nothing.
      this.#hasFailed ||= !(error instanceof Refused);
      // The old token is of amounts that are not held any more.
      if (error instanceof Unavailable && error.grant !== null) this.#token = error.grant;
      else if (!(error instanceof WeirgateError) || (error instanceof Unavailable && error.applied === "unknown")) {
        this.#mayCountTwice ||= countsTwice;
      }
      throw error;
    } finally {
      this.#inFlight -= 1;
      end();
    }
  }

  #checkNotEnded() {
    if (this.#isEnded) throw new InvalidRequest("the grant has ended, so nothing of it can change: acquire again");
  }

  /**
   * Checks that a settlement that changes amounts counts once. Nothing in the table remembers a grant without a lease, so
   * such a change is refused after another one that may have been applied. An end under a lease counts once.
   */
  #checkNoDoubt() {
    if (this.#mayCountTwice) {
      throw new InvalidRequest(
        "another settlement of the grant may have been applied, so this one could count twice: " +
          "release the grant without amounts, and acquire again",
      );
    }
  }

  /** @param {Record<string, any>} found */
  #update({ grant, amounts, lease }) {
    if (grant === null) {
      this.#isEnded = true;
      return;
    }
    this.#token = grant;
    this.#amounts = amounts;
    this.#expiresAt = lease === null ? null : new Date(lease.expires_at_ms);
    this.#mayHaveLease = lease !== null;
  }
}

/**
 * Ends a grant. The outcome of the work stays.
 *
 * @param {Grant} grant
 * @param {() => Promise<unknown>} finish
 */
export async function finishQuietly(grant, finish) {
  try {
    if (!grant.isEnded) await finish();
  } catch (error) {
    warnNotSettled(error);
  }
}

/** @param {unknown} error */
export function warnNotSettled(error) {
  process.emitWarning(`a grant could not be settled, its lease expires by itself: ${error}`, "WeirgateWarning");
}

/**
 * Waits until a promise ends, or rejects at the signal.
 *
 * @template T
 * @param {Promise<T>} settling
 * @param {AbortSignal | undefined} signal
 * @returns {Promise<T>}
 */
export function unlessAborted(settling, signal) {
  if (!signal) return settling;
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    settling.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}
