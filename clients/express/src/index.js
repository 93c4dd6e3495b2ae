/** Rate limits for every request of an Express application. `index.d.ts` describes what this exports. */

/** @import { IncomingMessage, ServerResponse } from "node:http" */
/** @import { Grant, Refused } from "weirgate" */
/** @import { RateLimitOptions } from "../index.js" */

const NAME = /^[A-Za-z0-9][A-Za-z0-9_.:@-]{0,255}$/;
const RULE = "1 to 256 of A-Z a-z 0-9 _ . - : @, starting with a letter or digit";
const REPAIR = "the limits of this service need a repair";
/** What an acquire for slots has without a `leaseMs`. */
const LEASE_MS = 60_000;
const KNOWN = ["client", "resource", "key", "onUnavailable", "take", "limits", "waitMs", "leaseMs", "timeoutMs"];

/**
 * @template {IncomingMessage} Request
 * @param {RateLimitOptions<Request>} options
 */
export function rateLimit(options) {
  const { client, resource, key, onUnavailable, take = { requests: 1 }, ...ofAcquire } = checked(options);
  const amounts = typeof take === "function" ? take : () => take;
  const decisions = { onUnavailable, onAgentUnavailable: onUnavailable };

  /**
   * @param {Request} request
   * @param {ServerResponse & { locals?: Record<string, unknown> }} response
   * @param {(error?: unknown) => void} next
   */
  return async function limited(request, response, next) {
    // A client that leaves gives its slot back, also while it waits for one.
    const left = new AbortController();
    // Its `close` event has passed, as after an authentication that took longer than the client stayed.
    if (response.destroyed || response.closed) return;
    response.once("close", () => left.abort());
    let taken, entity, grant;
    try {
      taken = await amounts(request);
      if (taken === null) return next();
      if (!taken) throw new TypeError(`take must return amounts, or null for a request without a limit, got ${taken}`);
      entity = await key(request);
    } catch (error) {
      return next(error);
    }
    if (!entity) return refuse(response, 401, {}, problem(401, "Unauthorized", "authenticate first"));
    if (typeof entity === "string" && !NAME.test(entity)) {
      // Without the name, which may be a secret. The client sent it, so no policy lets it pass.
      const detail = `the entity of this request must be ${RULE}, got ${entity.length} characters that are not: send a valid key`;
      return refuse(response, 400, {}, problem(400, "Bad Request", detail));
    }
    if (left.signal.aborted) return;
    try {
      grant = await client.acquire(entity, resource, taken, { ...ofAcquire, ...decisions, signal: left.signal });
    } catch (error) {
      if (left.signal.aborted) return;
      if (isRefused(error)) return refuse(response, error.status, error.headers, error.problem);
      warn(`a request was not served, as there is no decision on it: ${error}`);
      return refuse(response, 500, {}, problem(500, "Internal Server Error", REPAIR));
    }
    // Such as by a middleware that ends slow requests.
    if (left.signal.aborted || response.headersSent) return finish(grant);
    const stop = renewing(grant, ofAcquire.leaseMs ?? LEASE_MS);
    response.once("close", () => {
      stop();
      finish(grant);
    });
    setFields(response, grant.headers);
    if (response.locals) response.locals.grant = grant;
    next();
  };
}

/**
 * @template {IncomingMessage} Request
 * @param {RateLimitOptions<Request>} options
 * @returns {RateLimitOptions<Request>}
 */
function checked(options) {
  const unknown = Object.keys(options).find((name) => !KNOWN.includes(name));
  if (unknown) throw new TypeError(`an option must be one of ${KNOWN.join(", ")}, got ${JSON.stringify(unknown)}`);
  const { client, key, onUnavailable } = options;
  if (typeof client?.acquire !== "function") throw new TypeError("client must be a Client of weirgate: make one");
  if (typeof key !== "function") throw new TypeError("key must be a function: return what authentication found");
  if (onUnavailable !== "allow" && onUnavailable !== "deny") {
    throw new TypeError(`onUnavailable must be "allow" or "deny", got ${JSON.stringify(onUnavailable)}: choose one`);
  }
  return options;
}

/**
 * Whether it is a decision that grants nothing: `Denied`, `NeverFits` or `Disabled`.
 *
 * @param {any} error
 * @returns {error is Refused}
 */
function isRefused(error) {
  return typeof error?.problem === "object" && typeof error.status === "number";
}

/**
 * Renews a lease until the grant ends, because a client decides how long a response lasts. Returns what stops it.
 *
 * @param {Grant} grant
 * @param {number} leaseMs
 */
function renewing(grant, leaseMs) {
  if (grant.expiresAt === null) return () => {};
  let isRenewing = false;
  let hasWarned = false;
  // A release overtakes a renewal, and the grant ends by its answer.
  let isStopped = false;
  const isOver = () => isStopped || grant.isEnded;
  const timer = setInterval(async () => {
    if (isRenewing || isOver()) return;
    isRenewing = true;
    try {
      if ((await grant.renew(leaseMs)) === "lease_gone" && !isOver()) {
        clearInterval(timer);
        warn("a lease expired before its request ended, so its slots are free: choose a longer lease");
      }
    } catch (error) {
      if (!hasWarned && !isOver()) {
        hasWarned = true;
        warn(`a lease was not renewed, so the slots of a request may be free before it ends: ${error}`);
      }
    }
    isRenewing = false;
  }, leaseMs / 3).unref();
  return () => {
    isStopped = true;
    clearInterval(timer);
  };
}

/** @param {Grant} grant */
function finish(grant) {
  if (!grant.isEnded) {
    grant.release().catch((error) => warn(`a grant could not be settled, its lease expires by itself: ${error}`));
  }
}

/** @param {string} message */
function warn(message) {
  process.emitWarning(message, "WeirgateWarning");
}

/**
 * @param {ServerResponse} response
 * @param {Readonly<Record<string, string>>} fields
 */
function setFields(response, fields) {
  for (const [name, value] of Object.entries(fields)) response.setHeader(name, value);
}

/**
 * Answers as the agent does, unless another middleware has answered.
 *
 * @param {ServerResponse} response
 * @param {number} status
 * @param {Readonly<Record<string, string>>} fields
 * @param {Readonly<Record<string, unknown>>} body
 */
function refuse(response, status, fields, body) {
  if (response.headersSent) return;
  setFields(response, fields);
  response.statusCode = status;
  response.setHeader("content-type", "application/problem+json");
  response.end(JSON.stringify(body));
}

/**
 * @param {number} status
 * @param {string} title
 * @param {string} detail
 */
function problem(status, title, detail) {
  return { type: "about:blank", title, status, detail };
}
