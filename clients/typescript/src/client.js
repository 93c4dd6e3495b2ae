/** Acquires by the agent. */

/** @import { AcquireAllOptions, AcquireOptions, Balances, Bucket, CallOptions, ClientOptions } from "../index.js" */
/** @import { DeleteLimitsOptions, PeekOptions, SetLimitsOptions, Take } from "../index.js" */
/** @import { UsageOptions, UsageRowsOptions, VendorResponse } from "../index.js" */
/** @import { Request } from "./request.js" */
/** @import { Response } from "./transport.js" */

import { setTimeout as sleep } from "node:timers/promises";

import { Attempts, lost, pausedUntil, rateLimitFields, valueOf } from "./answer.js";
import * as check from "./check.js";
import { endpoint } from "./endpoint.js";
import { Unavailable } from "./errors.js";
import { Grant, finishQuietly, unlessAborted, warnNotSettled } from "./grant.js";
import * as request from "./request.js";
import { BALANCES, CHANGED, EFFECTIVE, USAGE_PAGE, USAGE_TOTAL } from "./shape.js";
import { Lost, NotSent, Transport } from "./transport.js";
import { effectiveLimits, limitsChange, limitStatus, usagePage, usageTotal } from "./values.js";
import { answerWithoutAgent, policyOf } from "./without-agent.js";

export class Client {
  #transport;
  #answerTimeoutMs;
  #retries;
  #onAgentUnavailable;
  /** @type {Set<Promise<unknown>>} */
  #inFlight = new Set();
  /** @type {import("./grant.js").Calls} */
  #calls;

  /** @param {ClientOptions} [options] */
  constructor(options = {}) {
    const known = ["url", "token", "answerTimeoutMs", "retries", "maxIdle", "onAgentUnavailable"];
    const given = check.fields("options", options, known);
    const { url, token, answerTimeoutMs = 10_000, retries = 2, maxIdle = 10, onAgentUnavailable = "raise" } = given;
    this.#answerTimeoutMs = check.milliseconds("answerTimeoutMs", answerTimeoutMs, 0, check.DAY_MS);
    this.#retries = check.whole("retries", retries, 0, 100, "0 to 100");
    this.#onAgentUnavailable = policyOf(onAgentUnavailable);
    const idle = check.whole("maxIdle", maxIdle, 0, 10_000, "0 to 10000 connections");
    const where = endpoint(url, token);
    this.url = where.url;
    this.#transport = new Transport(where, idle);
    this.#calls = {
      call: (...asked) => this.#call(...asked),
      keep: (settling) => this.#keep(settling),
      answerTimeoutMs: this.#answerTimeoutMs,
    };
  }

  /**
   * Returns what `console.log` shows.
   *
   * @param {number} _
   * @param {object} options
   * @param {(value: unknown, options: object) => string} inspect
   */
  [Symbol.for("nodejs.util.inspect.custom")](_, options, inspect) {
    return `Client ${inspect({ url: this.url }, options)}`;
  }

  /**
   * @param {string} entity
   * @param {string} resource
   * @param {Take} take
   * @param {AcquireOptions} [options]
   */
  async acquire(entity, resource, take, options = {}) {
    return this.#granted(request.acquire(entity, resource, take, options), options);
  }

  /**
   * @param {readonly Bucket[]} buckets
   * @param {AcquireAllOptions} [options]
   */
  async acquireAll(buckets, options = {}) {
    return this.#granted(request.acquireAll(buckets, options), options);
  }

  /**
   * @template T
   * @param {string} entity
   * @param {string} resource
   * @param {Take} take
   * @param {AcquireOptions | undefined | ((grant: Grant) => T | PromiseLike<T>)} options
   * @param {(grant: Grant) => T | PromiseLike<T>} [work]
   * @returns {Promise<T>}
   */
  async scope(entity, resource, take, options, work) {
    const run = typeof options === "function" ? options : work;
    if (typeof run !== "function") throw new TypeError(`scope() takes a function as its work, got ${typeof run}`);
    const given = typeof options === "function" || options === undefined ? {} : options;
    const grant = await this.acquire(entity, resource, take, given);
    let result;
    try {
      result = await run(grant);
    } catch (error) {
      await this.#finish(given.signal, grant, () => (grant.isUncertain ? grant.release() : grant.rollBack()));
      throw error;
    }
    await this.#finish(given.signal, grant, () => grant.release());
    return result;
  }

  /**
   * Ends the grant of a scope. The signal ends the wait, and `close` waits for what goes on.
   *
   * @param {AbortSignal | undefined} signal
   * @param {Grant} grant
   * @param {() => Promise<unknown>} finish
   */
  async #finish(signal, grant, finish) {
    const finishing = this.#keep(finishQuietly(grant, finish));
    await unlessAborted(finishing, signal).catch(() => {});
  }

  /** @param {string} token */
  restore(token) {
    return new Grant(this.#calls, check.text("the token of a grant", token));
  }

  /**
   * @param {string} entity
   * @param {string} resource
   * @param {VendorResponse} response
   * @param {CallOptions} [options]
   */
  async reportVendor(entity, resource, response, options = {}) {
    const asked = request.report(entity, resource, response);
    const { signal } = check.fields("options", options, ["signal"]);
    return pausedUntil(await this.#call(asked, check.signal(signal)));
  }

  /**
   * @param {string} entity
   * @param {string} resource
   * @param {PeekOptions} [options]
   * @returns {Promise<Balances>}
   */
  async peek(entity, resource, options = {}) {
    const asked = request.peek(entity, resource, options);
    const response = await this.#call(asked, check.signal(options.signal));
    const { status, limits, retry_after_ms: retryAfterMs } = valueOf(response, BALANCES);
    return { status, limits: limits.map(limitStatus), retryAfterMs, headers: rateLimitFields(response) };
  }

  /**
   * @param {string} entity
   * @param {string} resource
   * @param {string} limit
   * @param {PeekOptions} [options]
   */
  async remaining(entity, resource, limit, options) {
    const { limits } = await this.peek(entity, resource, options);
    return limits.find((status) => status.limit === limit)?.available;
  }

  /** @param {UsageOptions} options */
  async usage(options) {
    const response = await this.#call(request.usageTotal(options), check.signal(options.signal));
    return usageTotal(valueOf(response, USAGE_TOTAL));
  }

  /** @param {UsageRowsOptions} options */
  async usageRows(options) {
    const response = await this.#call(request.usageRows(options), check.signal(options.signal));
    return usagePage(valueOf(response, USAGE_PAGE));
  }

  /**
   * @param {string} entity
   * @param {string} resource
   * @param {CallOptions} [options]
   */
  async limits(entity, resource, options = {}) {
    const { signal } = check.fields("options", options, ["signal"]);
    const response = await this.#call(request.limitsOf(entity, resource), check.signal(signal));
    return effectiveLimits(valueOf(response, EFFECTIVE));
  }

  /** @param {SetLimitsOptions} options */
  async setLimits(options) {
    const response = await this.#call(request.setting(options), check.signal(options.signal));
    return limitsChange(valueOf(response, CHANGED));
  }

  /** @param {DeleteLimitsOptions} options */
  async deleteLimits(options) {
    const response = await this.#call(request.deleting(options), check.signal(options.signal));
    return limitsChange(valueOf(response, CHANGED));
  }

  async close() {
    this.#transport.closeIdle();
    while (this.#inFlight.size > 0) await Promise.allSettled(this.#inFlight);
    this.#transport.close();
  }

  /**
   * @param {Request} asked
   * @param {AcquireAllOptions} options
   */
  async #granted(asked, { signal, onAgentUnavailable }) {
    const given = check.signal(signal);
    const policy = onAgentUnavailable === undefined ? this.#onAgentUnavailable : policyOf(onAgentUnavailable);
    const answered = this.#call(asked, given).catch((error) => answerWithoutAgent(policy, asked, error));
    return new Grant(this.#calls, await answered);
  }

  /**
   * Rolls back a grant that the agent answers with after the call was given up.
   *
   * @param {Promise<Response | undefined>} answered
   */
  #takeBack = (answered) => {
    const rollBack = async () => {
      const response = await answered;
      if (response?.status === 200) await new Grant(this.#calls, response).rollBack();
    };
    this.#keep(rollBack().catch(warnNotSettled));
  };

  /**
   * Keeps in mind what is in flight.
   *
   * @template T
   * @param {Promise<T>} call
   */
  #keep(call) {
    this.#inFlight.add(call);
    const forget = () => this.#inFlight.delete(call);
    call.then(forget, forget);
    return call;
  }

  /**
   * @param {Request} asked
   * @param {AbortSignal} [signal]
   * @param {number} [deadline]
   * @returns {Promise<Response>}
   */
  #call(asked, signal, deadline = performance.now() + this.#answerTimeoutMs + asked.longerMs) {
    return this.#keep(this.#exchange(asked, signal, deadline));
  }

  /**
   * @param {Request} asked
   * @param {AbortSignal | undefined} signal
   * @param {number} deadline
   * @returns {Promise<Response>}
   */
  async #exchange(asked, signal, deadline) {
    const attempts = new Attempts(this.#retries, deadline);
    const takeBack = asked.path === request.ACQUIRE ? this.#takeBack : undefined;
    for (;;) {
      signal?.throwIfAborted();
      let pauseMs;
      try {
        const { path, body } = asked;
        const response = await this.#transport.exchange(path, body, attempts.remainingMs, signal, takeBack);
        if (response.status === 200) return response;
        pauseMs = attempts.pauseMsAfter(response);
      } catch (error) {
        if (error instanceof Lost) throw lost(error, asked.path);
        if (!(error instanceof NotSent)) throw error;
        pauseMs = attempts.pauseMs(new Unavailable(error.message, "no", { cause: error }), true);
      }
      // A pause that the signal ends throws at the loop's begin: the signal's own reason.
      await sleep(pauseMs, undefined, { signal }).catch(() => {});
    }
  }
}
