/** Requests as JSON, and their paths. */

/** @import { AcquireAllOptions, Amounts, Bucket, Limit, PeekOptions } from "../index.js" */

import * as check from "./check.js";
import { limitJson } from "./values.js";

export const ACQUIRE = "/v1/acquire";
export const SETTLE = "/v1/settle";
export const PEEK = "/v1/peek";

const OF_ACQUIRE = ["waitMs", "leaseMs", "timeoutMs", "onUnavailable", "bypass", "signal"];
const OF_BUCKET = ["limits", "limitsVersion", "cascading"];
const MAX_TIMEOUT_MS = 3_600_000;
const DECISIONS = ["error", "deny", "allow", ...Array.from({ length: 100 }, (_, place) => `local ${place + 1}`)];

/**
 * @typedef {object} Request
 * @property {string} path
 * @property {string} body
 * @property {number} longerMs How much longer than usual the agent may take.
 */

/**
 * Splits the options of an acquire of one bucket.
 *
 * @param {unknown} options
 */
export function splitOptions(options) {
  const { limits, limitsVersion, cascading, ...others } = check.fields("options", options, [...OF_BUCKET, ...OF_ACQUIRE]);
  return { ofBucket: { limits, limitsVersion, cascading }, others };
}

/**
 * @param {readonly Bucket[]} buckets
 * @param {AcquireAllOptions} options
 * @returns {Request}
 */
export function acquire(buckets, options) {
  if (!Array.isArray(buckets) || buckets.length === 0) {
    check.refuse("buckets", "an array with at least one bucket", buckets);
  }
  const [first, ...others] = buckets.map(bucketJson);
  const { waitMs, leaseMs, timeoutMs, onUnavailable, bypass } = check.fields("options", options, OF_ACQUIRE);
  const rule = '"error", "deny", "allow" or "local 1" to "local 100"';
  const body = {
    ...(others.length === 0 ? first : { buckets: [first, ...others] }),
    wait_ms: ifGiven(waitMs, () => check.milliseconds("waitMs", waitMs, 0, check.DAY_MS)),
    lease_ms: ifGiven(leaseMs, () => check.milliseconds("leaseMs", leaseMs, 1, check.DAY_MS)),
    timeout_ms: ifGiven(timeoutMs, () => check.milliseconds("timeoutMs", timeoutMs, 1, MAX_TIMEOUT_MS)),
    on_unavailable: ifGiven(onUnavailable, () => check.oneOf("onUnavailable", onUnavailable, DECISIONS, rule)),
    bypass: ifGiven(bypass, () => check.flag("bypass", bypass)) || undefined,
  };
  return request(ACQUIRE, body, (body.wait_ms ?? 0) + (body.timeout_ms ?? 0));
}

/**
 * @param {string} entity
 * @param {string} resource
 * @param {PeekOptions} options
 * @returns {Request}
 */
export function peek(entity, resource, options) {
  const { need, limits } = check.fields("options", options, ["need", "limits", "signal"]);
  return request(PEEK, {
    entity: check.text("entity", entity),
    resource: check.text("resource", resource),
    need: ifGiven(need, () => check.amounts("need", need, check.wholeTokens)),
    limits: ifGiven(limits, () => limitsJson(limits)),
  });
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

/** @param {Bucket} bucket */
function bucketJson(bucket) {
  const known = ["entity", "resource", "take", ...OF_BUCKET];
  const { entity, resource, take, limits, limitsVersion, cascading } = check.fields("a bucket", bucket, known);
  const most = Number.MAX_SAFE_INTEGER;
  return {
    entity: check.text("entity", entity),
    resource: check.text("resource", resource),
    take: check.amounts("take", take, amountJson),
    limits: ifGiven(limits, () => limitsJson(limits)),
    limits_version: ifGiven(limitsVersion, () => check.whole("limitsVersion", limitsVersion, 0, most, "0 to 2^53 - 1")),
    cascading: ifGiven(cascading, () => check.flag("cascading", cascading)) || undefined,
  };
}

/**
 * @param {string} what
 * @param {unknown} amount
 */
function amountJson(what, amount) {
  if (typeof amount !== "object") return check.tokens(what, amount);
  const { atLeast, atMost } = check.fields(what, amount, ["atLeast", "atMost"]);
  const least = check.wholeTokens(`${what}: atLeast`, atLeast);
  const most = check.wholeTokens(`${what}: atMost`, atMost);
  if (least > most) check.refuse(`${what}: atMost`, `${least} or more, as atLeast is`, most);
  return { at_least: least, at_most: most };
}

/** @param {readonly Limit[]} limits */
function limitsJson(limits) {
  return Array.isArray(limits) ? limits.map(limitJson) : check.refuse("limits", "an array of limits", limits);
}

/**
 * @template T
 * @param {unknown} given
 * @param {() => T} checked
 */
function ifGiven(given, checked) {
  return given === undefined ? undefined : checked();
}
