/** Requests as JSON, and their paths. */

/** @import { AcquireAllOptions, AcquireOptions, Amounts, Bucket, Limit, PeekOptions, Take, VendorResponse } from "../index.js" */
/** @import { DeleteLimitsOptions, SetLimitsOptions, UsageOptions, UsageRowsOptions } from "../index.js" */

import * as check from "./check.js";
import { InvalidRequest } from "./errors.js";
import { limitJson } from "./values.js";

export const ACQUIRE = "/v1/acquire";
export const SETTLE = "/v1/settle";
export const REPORT = "/v1/report";
export const PEEK = "/v1/peek";
export const USAGE = "/v1/usage";
export const LIMITS = "/v1/limits";
export const SET_LIMITS = "/v1/limits/set";
export const DELETE_LIMITS = "/v1/limits/delete";

const OF_ACQUIRE = ["waitMs", "queueMs", "now", "leaseMs", "timeoutMs", "onUnavailable", "onAgentUnavailable", "bypass", "signal"];
const OF_ONE = ["limits", "limitsVersion", "cascading", "class", ...OF_ACQUIRE];
const OF_BUCKET = ["entity", "resource", "take", "limits", "limitsVersion", "cascading", "class"];
const OF_PEEK = ["need", "limits", "signal"];
const OF_USAGE = ["entity", "plan", "resource", "by", "start", "end", "signal"];
const OF_DELETION = ["entity", "plan", "resource", "system", "author", "signal"];
const OF_LIMITS = ["limits", "status", "isShadow", "class", "replace", ...OF_DELETION];
/** @type {readonly import("../index.js").Status[]} */
const STATUSES = ["enforced", "disabled", "unlimited"];
const OF_RANGE = ["atLeast", "atMost"];
/** No other field of a vendor's answer leaves the process: it may be a secret. */
const OF_VENDOR_LIMITS = /^(date|retry-after(-ms)?|ratelimit|(x|anthropic)-ratelimit-.+)$/;
const READABLE = /^[\x00-\x7f]{0,256}$/;
const MAX_HEADERS = 8_192;
const HOUR_MS = 3_600_000;
const DECISIONS = ["error", "deny", "allow", ...Array.from({ length: 100 }, (_, place) => `local ${place + 1}`)];

/**
 * @typedef {object} Request
 * @property {string} path
 * @property {string} body
 * @property {number} longerMs How much longer than usual the agent may take.
 */

/**
 * @param {string} entity
 * @param {string} resource
 * @param {Take} take
 * @param {AcquireOptions} options
 * @returns {Request}
 */
export function acquire(entity, resource, take, options) {
  const given = check.fields("options", options, OF_ONE);
  const { limits, limitsVersion, cascading, class: callerClass } = given;
  return acquiring(bucketJson({ entity, resource, take, limits, limitsVersion, cascading, class: callerClass }), given);
}

/**
 * @param {readonly Bucket[]} buckets
 * @param {AcquireAllOptions} options
 * @returns {Request}
 */
export function acquireAll(buckets, options) {
  if (!Array.isArray(buckets) || buckets.length === 0) {
    check.refuse("buckets", "an array with at least one bucket", buckets);
  }
  const given = check.fields("options", options, OF_ACQUIRE);
  const asked = buckets.map((bucket) => bucketJson(check.fields("a bucket", bucket, OF_BUCKET)));
  return acquiring(asked.length === 1 ? asked[0] : { buckets: asked }, given);
}

/**
 * @param {Record<string, any> | undefined} buckets
 * @param {Record<string, any>} options
 * @returns {Request}
 */
function acquiring(buckets, { waitMs, queueMs, now, leaseMs, timeoutMs, onUnavailable, bypass }) {
  const body = { ...buckets };
  if (waitMs !== undefined) body.wait_ms = check.milliseconds("waitMs", waitMs, 0, check.DAY_MS);
  if (queueMs !== undefined) body.queue_ms = check.milliseconds("queueMs", queueMs, 1, HOUR_MS);
  if (now !== undefined && check.flag("now", now)) {
    if (queueMs === undefined) check.refuse("now", "left out without queueMs", now);
    body.answer = "now";
  }
  if (leaseMs !== undefined) body.lease_ms = check.milliseconds("leaseMs", leaseMs, 1, check.DAY_MS);
  if (timeoutMs !== undefined) body.timeout_ms = check.milliseconds("timeoutMs", timeoutMs, 1, HOUR_MS);
  if (onUnavailable !== undefined) {
    const rule = '"error", "deny", "allow" or "local 1" to "local 100"';
    body.on_unavailable = check.oneOf("onUnavailable", onUnavailable, DECISIONS, rule);
  }
  if (bypass !== undefined && check.flag("bypass", bypass)) body.bypass = true;
  const queueing = body.answer ? 0 : (body.queue_ms ?? 0);
  return request(ACQUIRE, body, (body.wait_ms ?? 0) + queueing + (body.timeout_ms ?? 0));
}

/**
 * @param {string} entity
 * @param {string} resource
 * @param {PeekOptions} options
 * @returns {Request}
 */
export function peek(entity, resource, options) {
  const { need, limits } = check.fields("options", options, OF_PEEK);
  /** @type {Record<string, unknown>} */
  const body = { entity: check.text("entity", entity), resource: check.text("resource", resource) };
  if (need !== undefined) body.need = check.amounts("need", need, check.wholeTokens);
  if (limits !== undefined) body.limits = limitsJson(limits);
  return request(PEEK, body);
}

/**
 * @param {UsageOptions} options
 * @returns {Request}
 */
export function usageTotal(options) {
  return request(USAGE, { ...usageJson(check.fields("options", options, OF_USAGE)), total: true });
}

/**
 * @param {UsageRowsOptions} options
 * @returns {Request}
 */
export function usageRows(options) {
  const given = check.fields("options", options, [...OF_USAGE, "page"]);
  const { page } = given;
  return request(USAGE, { ...usageJson(given), ...(page !== undefined && { page: check.text("page", page) }) });
}

/** @param {Record<string, any>} given */
function usageJson({ by = "day", start, end, ...given }) {
  const scope = names(given);
  if (Object.keys(scope).length === 0) check.refuse("entity or plan, resource, or both", "given", undefined);
  return {
    scope,
    by: check.oneOf("by", by, ["hour", "day", "month"], '"hour", "day" or "month"'),
    from_ms: check.instant("start", start),
    to_ms: check.instant("end", end),
  };
}

/**
 * @param {string} entity
 * @param {string} resource
 * @returns {Request}
 */
export function limitsOf(entity, resource) {
  return request(LIMITS, { entity: check.text("entity", entity), resource: check.text("resource", resource) });
}

/**
 * @param {SetLimitsOptions} options
 * @returns {Request}
 */
export function setting(options) {
  const given = check.fields("options", options, OF_LIMITS);
  const { limits, status, isShadow, class: callerClass, replace } = given;
  const body = ofLevel(given);
  if (limits !== undefined) body.limits = limitsJson(limits);
  if (status !== undefined) {
    body.status = check.oneOf("status", status, STATUSES, '"enforced", "disabled" or "unlimited"');
  }
  if (isShadow !== undefined) body.is_shadow = check.flag("isShadow", isShadow);
  if (callerClass !== undefined) body.class = check.text("class", callerClass);
  if ([limits, status, isShadow, callerClass].every((setting) => setting === undefined)) {
    throw new InvalidRequest("the change sets nothing: give limits, status, isShadow or class");
  }
  if (replace !== undefined && check.flag("replace", replace)) body.replace = true;
  return request(SET_LIMITS, body);
}

/**
 * @param {DeleteLimitsOptions} options
 * @returns {Request}
 */
export function deleting(options) {
  return request(DELETE_LIMITS, ofLevel(check.fields("options", options, OF_DELETION)));
}

/**
 * @param {Record<string, any>} given
 * @returns {Record<string, any>}
 */
function ofLevel({ system = false, author, ...given }) {
  const level = names(given);
  const named = Object.keys(level).join("_");
  if (check.flag("system", system) === (named !== "")) {
    const what = named ? "has a name beside system" : "is missing";
    throw new InvalidRequest(`the level ${what}: give entity or plan, resource, or both, or system: true alone`);
  }
  return {
    level: { level: named || "system", ...level },
    ...(author !== undefined && { author: check.text("author", author) }),
  };
}

/**
 * Returns the names of a level or of a scope that are given, in the order of a level's kind.
 *
 * @param {Record<string, any>} given
 */
function names({ entity, plan, resource }) {
  if (entity !== undefined && plan !== undefined) check.refuse("plan", "left out beside entity", plan);
  /** @type {Record<string, string>} */
  const found = {};
  if (entity !== undefined) found.entity = check.text("entity", entity);
  if (plan !== undefined) found.plan = check.text("plan", plan);
  if (resource !== undefined) found.resource = check.text("resource", resource);
  return found;
}

/**
 * @param {string} entity
 * @param {string} resource
 * @param {VendorResponse} response
 * @returns {Request}
 */
export function report(entity, resource, response) {
  const bucket = { entity: check.text("entity", entity), resource: check.text("resource", resource) };
  return request(REPORT, { ...bucket, ...saying(response) });
}

/**
 * Returns what a vendor's response says about its limits.
 *
 * @param {VendorResponse} response
 */
export function saying(response) {
  const { status, headers } = /** @type {Record<string, any>} */ (response ?? {});
  check.whole("status", status, 100, 599, "a status of HTTP, 100 to 599");
  if (headers !== undefined && (typeof headers !== "object" || headers === null)) {
    check.refuse("headers", "an object or Headers", headers);
  }
  return { vendor: { status, headers: ofLimits(headers ?? {}) } };
}

/**
 * Returns the fields of limits that the agent can read. An answer of the vendor is no error of the caller.
 *
 * @param {object} headers
 */
function ofLimits(headers) {
  /** @type {Record<string, string[]>} */
  const found = {};
  let left = MAX_HEADERS;
  // Headers of `fetch` are a list of pairs, as are those of axios.
  const fields = Symbol.iterator in headers ? /** @type {Iterable<any>} */ (headers) : Object.entries(headers);
  for (const [key, given] of fields) {
    const name = String(key).toLowerCase();
    if (!OF_VENDOR_LIMITS.test(name)) continue;
    for (const text of Array.isArray(given) ? given : [given]) {
      if (typeof text !== "string" || !READABLE.test(text) || left < name.length + text.length) continue;
      left -= name.length + text.length;
      (found[name] ??= []).push(text);
    }
  }
  return found;
}

/**
 * @param {string} token
 * @param {Record<string, unknown>} changes
 * @returns {Request}
 */
export function settle(token, changes) {
  return request(SETTLE, { grant: token, ...changes });
}

/**
 * @param {Amounts} actual
 * @param {number | undefined} bucket
 */
export function adjustment(actual, bucket) {
  return { adjust: check.amounts("actual", actual, check.tokens), ...place(bucket) };
}

/**
 * @param {Amounts} unused
 * @param {number | undefined} bucket
 */
export function givingBack(unused, bucket) {
  return { give_back: check.amounts("unused", unused, check.tokens), ...place(bucket) };
}

/**
 * @param {Amounts} more
 * @param {number | undefined} bucket
 */
export function takingMore(more, bucket) {
  return { take_more: check.amounts("more", more, check.wholeTokens), ...place(bucket) };
}

/** @param {number} lastsMs */
export function renewal(lastsMs) {
  return { renew_ms: check.milliseconds("lastsMs", lastsMs, 1, check.DAY_MS) };
}

/**
 * @param {"release" | "roll_back"} end
 * @param {Amounts} [actual]
 */
export function ending(end, actual) {
  return actual === undefined ? { end } : { ...adjustment(actual, undefined), end };
}

/** @param {number | undefined} bucket */
function place(bucket) {
  const rule = "the place of a bucket, from 0";
  return bucket === undefined ? {} : { bucket: check.whole("bucket", bucket, 0, Number.MAX_SAFE_INTEGER, rule) };
}

/**
 * @param {string} path
 * @param {object} body
 * @returns {Request}
 */
function request(path, body, longerMs = 0) {
  return { path, body: JSON.stringify(body), longerMs };
}

/** @param {Record<string, any>} bucket */
function bucketJson({ entity, resource, take, limits, limitsVersion, cascading, class: callerClass }) {
  /** @type {Record<string, any>} */
  const body = {
    entity: check.text("entity", entity),
    resource: check.text("resource", resource),
    take: check.amounts("take", take, amountJson),
  };
  if (limits !== undefined) body.limits = limitsJson(limits);
  if (limitsVersion !== undefined) {
    body.limits_version = check.whole("limitsVersion", limitsVersion, 0, Number.MAX_SAFE_INTEGER, "0 to 2^53 - 1");
  }
  if (cascading !== undefined && check.flag("cascading", cascading)) body.cascading = true;
  if (callerClass !== undefined) body.class = check.text("class", callerClass);
  return body;
}

/**
 * @param {string} what
 * @param {unknown} amount
 */
function amountJson(what, amount) {
  if (typeof amount !== "object") return check.tokens(what, amount);
  const { atLeast, atMost } = check.fields(what, amount, OF_RANGE);
  const least = check.wholeTokens(`${what}: atLeast`, atLeast);
  const most = check.wholeTokens(`${what}: atMost`, atMost);
  if (least > most) check.refuse(`${what}: atMost`, `${least} or more, as atLeast is`, most);
  return { at_least: least, at_most: most };
}

/** @param {readonly (Limit | string)[]} limits */
function limitsJson(limits) {
  if (!Array.isArray(limits)) return check.refuse("limits", "an array of limits", limits);
  return limits.map((given) => (typeof given === "string" && /[^=]=[^=]/.test(given) ? given : limitJson(given)));
}
