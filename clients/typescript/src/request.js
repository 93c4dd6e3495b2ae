/** Requests as JSON, and their paths. */

/** @import { AcquireAllOptions, Bucket, Limit, PeekOptions, Take } from "../index.js" */

import { InvalidRequest } from "./errors.js";

export const ACQUIRE = "/v1/acquire";
export const SETTLE = "/v1/settle";
export const PEEK = "/v1/peek";

/**
 * @typedef {object} Request
 * @property {string} path
 * @property {string} body
 * @property {number} longerMs How much longer than usual the agent may take.
 */

/**
 * @param {readonly Bucket[]} buckets
 * @param {AcquireAllOptions} options
 * @returns {Request}
 */
export function acquire(buckets, options) {
  const [first, ...others] = buckets.map(bucketJson);
  if (first === undefined) throw new InvalidRequest("buckets must have at least one bucket, got none");
  const body = {
    ...(others.length === 0 ? first : { buckets: [first, ...others] }),
    wait_ms: options.waitMs,
    lease_ms: options.leaseMs,
    timeout_ms: options.timeoutMs,
    on_unavailable: options.onUnavailable,
    bypass: options.bypass || undefined,
  };
  return request(ACQUIRE, body, (options.waitMs ?? 0) + (options.timeoutMs ?? 0));
}

/**
 * @param {string} entity
 * @param {string} resource
 * @param {PeekOptions} options
 * @returns {Request}
 */
export function peek(entity, resource, { need, limits }) {
  return request(PEEK, { entity, resource, need, limits: limits?.map(limitJson) });
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
 * @param {string} path
 * @param {object} body
 * @returns {Request}
 */
function request(path, body, longerMs = 0) {
  return { path, body: JSON.stringify(body, finite), longerMs };
}

/**
 * @param {string} key
 * @param {unknown} value
 */
function finite(key, value) {
  // JSON would make null of it.
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new InvalidRequest(`${key} must be a number, got ${value}`);
  }
  return value;
}

/** @param {Bucket} bucket */
function bucketJson({ entity, resource, take, limits, limitsVersion, cascading }) {
  return {
    entity,
    resource,
    take: takeJson(take),
    limits: limits?.map(limitJson),
    limits_version: limitsVersion,
    cascading: cascading || undefined,
  };
}

/** @param {Take} take */
function takeJson(take) {
  const amounts = Object.entries(take).map(([limit, amount]) => [
    limit,
    typeof amount === "object" ? { at_least: amount.atLeast, at_most: amount.atMost } : amount,
  ]);
  return Object.fromEntries(amounts);
}

/** @param {Limit} limit */
function limitJson({ name, capacity, refill, periodMs, mode }) {
  if (refill === 0) return { name, slots: capacity, mode };
  return { name, capacity_tokens: capacity, refill_tokens: refill, refill_period_ms: periodMs, mode };
}
