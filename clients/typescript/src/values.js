/** Limits and their states. */

/** @import { Limit, LimitOptions, LimitStatus, Mode } from "../index.js" */

const SECOND_MS = 1000;
const MINUTE_MS = 60 * SECOND_MS;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;

/**
 * @param {string} name
 * @param {number} refill
 * @param {number} periodMs
 * @param {LimitOptions} [options]
 * @returns {Limit}
 */
function rate(name, refill, periodMs, { burst = refill, mode = "enforced" } = {}) {
  return { name, capacity: burst, refill, periodMs, mode };
}

/**
 * @param {number} periodMs
 * @returns {(name: string, tokens: number, options?: LimitOptions) => Limit}
 */
const per = (periodMs) => (name, tokens, options) => rate(name, tokens, periodMs, options);

export const limit = {
  rate,
  perSecond: per(SECOND_MS),
  perMinute: per(MINUTE_MS),
  perHour: per(HOUR_MS),
  perDay: per(DAY_MS),
  /**
   * @param {string} name
   * @param {number} slots
   * @param {{ mode?: Mode }} [options]
   * @returns {Limit}
   */
  slots: (name, slots, { mode = "enforced" } = {}) => ({ name, capacity: slots, refill: 0, periodMs: 0, mode }),
};

/**
 * Returns a limit's status from its JSON.
 *
 * @param {Record<string, any>} json
 * @returns {LimitStatus}
 */
export function limitStatus(json) {
  return {
    entity: json.entity,
    resource: json.resource,
    limit: json.limit,
    mode: json.mode,
    capacity: json.capacity_tokens,
    refill: json.refill_tokens,
    periodMs: json.refill_period_ms,
    available: json.available_tokens,
    requested: json.requested_tokens,
    isRequested: json.is_requested,
    retryAfterMs: json.retry_after_ms,
  };
}

/**
 * Returns whether a limit has too little for the request.
 *
 * @param {LimitStatus} status
 */
export function isShort(status) {
  return status.isRequested && status.requested > status.available && status.mode !== "soft";
}
