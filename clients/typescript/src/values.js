/** Limits and their states. */

/** @import { Config, EffectiveLimits, Level, Limit, LimitOptions, LimitsChange, LimitStatus } from "../index.js" */
/** @import { Mode, UsagePage, UsageTotal } from "../index.js" */

import * as check from "./check.js";

const SECOND_MS = 1000;
const MINUTE_MS = 60 * SECOND_MS;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;
const MAX_PERIOD_MS = 366 * DAY_MS;
const RANGE = "1 to 10^12 whole tokens";
const OF_LIMIT = ["name", "capacity", "refill", "periodMs", "mode", "window", "schedule", "classes"];
/** @type {readonly Mode[]} */
const MODES = ["enforced", "shadow", "soft"];

/**
 * @param {string} name
 * @param {number} refill
 * @param {number} periodMs
 * @param {LimitOptions} [options]
 * @returns {Limit}
 */
function rate(name, refill, periodMs, options = {}) {
  const of = named(name);
  const { burst = refill, mode = "enforced" } = check.fields(`${of} options`, options, ["burst", "mode"]);
  // Before the limit is made, because one without a refill and a period has slots.
  checkRate(of, refill, periodMs);
  return checkedLimit({ name, capacity: burst, refill, periodMs, mode });
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
  slots: (name, slots, options = {}) => {
    const of = named(name);
    const { mode = "enforced" } = check.fields(`${of} options`, options, ["mode"]);
    const capacity = check.whole(`${of} slots`, slots, 1, check.MAX_TOKENS, RANGE);
    return checkedLimit({ name, capacity, refill: 0, periodMs: 0, mode });
  },
  /**
   * @param {string} name
   * @param {number} tokens
   * @param {string} window
   * @param {{ mode?: Mode }} [options]
   * @returns {Limit}
   */
  quota: (name, tokens, window, options = {}) => {
    const of = named(name);
    const { mode = "enforced" } = check.fields(`${of} options`, options, ["mode"]);
    const capacity = check.whole(`${of} quota`, tokens, 1, check.MAX_TOKENS, RANGE);
    check.text(`${of} window`, window);
    return checkedLimit({ name, capacity, refill: 0, periodMs: 0, mode, window });
  },
};

/**
 * Returns a limit as the agent reads it: its text, or its fields. It may come from elsewhere than `limit`.
 *
 * @param {Limit | string} given
 */
export function limitJson(given) {
  if (typeof given === "string") {
    return /[^=]=[^=]/.test(given) ? given : check.refuse("a limit", 'text such as "rpm=600/minute"', given);
  }
  const copy = /** @type {Limit} */ (check.fields("a limit", given, OF_LIMIT));
  const { name, capacity, refill, periodMs, mode, window, schedule, classes } = checkedLimit(copy);
  const rules = schedule === undefined ? "" : `,schedule=${schedule}`;
  if (window !== undefined) return `${name}=${/^\d/.test(window) ? "session" : "quota"}:${capacity}/${window},mode=${mode}${rules}`;
  if (rules !== "" || classes !== undefined) {
    const parts = classes === undefined ? "" : `,class=${classes.replaceAll(",", ",class=")}`;
    return `${name}=${refill === 0 ? capacity : `${refill}/${periodMs}ms,burst=${capacity}`}${parts},mode=${mode}${rules}`;
  }
  if (refill === 0) return { name, slots: capacity, mode };
  return { name, capacity_tokens: capacity, refill_tokens: refill, refill_period_ms: periodMs, mode };
}

/**
 * @param {Limit} limit
 * @returns {Limit}
 */
function checkedLimit(limit) {
  const of = named(limit.name);
  check.oneOf(`${of} mode`, limit.mode, MODES, '"enforced", "shadow" or "soft"');
  check.whole(`${of} capacity (burst)`, limit.capacity, 1, check.MAX_TOKENS, RANGE);
  const refills = !Object.is(limit.refill, 0) || !Object.is(limit.periodMs, 0);
  if (limit.schedule !== undefined) check.text(`${of} schedule`, limit.schedule);
  if (limit.classes !== undefined) {
    check.text(`${of} classes`, limit.classes);
    if (!refills) check.refuse(`${of} classes`, "left out without a rate", limit.classes);
  }
  if (limit.window !== undefined) {
    check.text(`${of} window`, limit.window);
    if (refills) check.refuse(`${of} window`, "left out of a rate", limit.window);
  }
  if (refills) checkRate(of, limit.refill, limit.periodMs);
  return limit;
}

/**
 * @param {string} of
 * @param {number} refill
 * @param {number} periodMs
 */
function checkRate(of, refill, periodMs) {
  check.whole(`${of} refill`, refill, 1, check.MAX_TOKENS, RANGE);
  check.whole(`${of} periodMs`, periodMs, 1, MAX_PERIOD_MS, "1 to 31622400000 whole milliseconds");
}

/** @param {string} name */
function named(name) {
  return `limit ${check.shown(check.text("the name of a limit", name))}:`;
}

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
    kind: json.window === undefined ? (json.refill_tokens === 0 ? "slots" : "rate") : "quota",
    mode: json.mode,
    capacity: json.capacity_tokens,
    refill: json.refill_tokens,
    periodMs: json.refill_period_ms,
    available: json.available_tokens,
    requested: json.requested_tokens,
    isRequested: json.is_requested,
    retryAfterMs: json.retry_after_ms,
    resetsAt: json.resets_at_ms === undefined ? null : new Date(json.resets_at_ms),
    pausedForMs: json.paused_ms ?? null,
  };
}

/**
 * Returns whether a limit has too little for the request, or its bucket is paused.
 *
 * @param {LimitStatus} status
 */
export function isShort(status) {
  const lacks = status.requested > status.available || status.pausedForMs !== null;
  return status.isRequested && lacks && status.mode !== "soft";
}

/**
 * @param {Record<string, any>} json
 * @returns {UsageTotal}
 */
export function usageTotal(json) {
  return { ...used(json), unreadable: unreadable(json) };
}

/**
 * @param {Record<string, any>} json
 * @returns {UsagePage}
 */
export function usagePage(json) {
  /** @type {Record<string, any>[]} */
  const items = json.items;
  const rows = items.map((row) => ({
    entity: row.entity,
    resource: row.resource,
    start: new Date(row.start_ms),
    end: new Date(row.end_ms),
    ...used(row),
  }));
  return { rows, next: json.next, unreadable: unreadable(json) };
}

/**
 * @param {Record<string, any>} json
 * @returns {EffectiveLimits}
 */
export function effectiveLimits(json) {
  return {
    buckets: json.buckets.map((/** @type {Record<string, any>} */ { entity, level, status, limits }) => ({
      entity,
      level: level && levelOf(level),
      status,
      limits: limits.map(limitOf),
    })),
    levels: json.levels.map((/** @type {Record<string, any>} */ { level, config, is_from_file: isFromFile }) => ({
      level: levelOf(level),
      config: configOf(config),
      isFromFile,
    })),
    missingPlan: json.missing_plan ?? null,
  };
}

/**
 * @param {Record<string, any>} json
 * @returns {LimitsChange}
 */
export function limitsChange({ changed, before, after }) {
  return { isChanged: changed, before: configOf(before), after: configOf(after) };
}

/**
 * @param {Record<string, any>} json
 * @returns {Level}
 */
function levelOf({ level, entity, plan, resource }) {
  return {
    kind: level,
    entity: level.startsWith("entity") ? entity : null,
    plan: level.startsWith("plan") ? plan : null,
    resource: level.endsWith("resource") ? resource : null,
  };
}

/**
 * @param {Record<string, any> | null} json
 * @returns {Config | null}
 */
function configOf(json) {
  return (
    json && {
      limits: json.limits.map(limitOf),
      status: json.status,
      isShadow: json.is_shadow,
      class: json.class ?? null,
    }
  );
}

/**
 * @param {Record<string, any>} json
 * @returns {Limit}
 */
function limitOf(json) {
  const { name, slots, capacity_tokens: capacity, refill_tokens: refill, refill_period_ms: periodMs, mode } = json;
  const [text, schedule] = json.schedule === undefined ? [json.text] : json.text.split(",schedule=");
  const rules = schedule === undefined ? {} : { schedule };
  if (slots !== undefined) return { name, capacity: slots, refill: 0, periodMs: 0, mode, ...rules };
  if (json.quota_tokens !== undefined) {
    const window = text.slice(text.indexOf("/") + 1).split(",mode=")[0];
    return { name, capacity: json.quota_tokens, refill: 0, periodMs: 0, mode, window, ...rules };
  }
  const classes = Object.entries(json.classes ?? {}).map(classOf).join(",");
  return { name, capacity, refill, periodMs, mode, ...rules, ...(classes && { classes }) };
}

/** @param {[string, { at_least_percent: number, leaves_percent: number }]} entry */
function classOf([name, { at_least_percent: atLeast, leaves_percent: leaves }]) {
  return leaves === 0 ? `${name}:${atLeast}%` : `${name}:${atLeast}%:${leaves}%`;
}

/** @param {Record<string, any>} json */
function used({ usage, state, complete_until_ms: until }) {
  return { tokens: usage.tokens, acquires: usage.acquires, state, completeUntil: new Date(until) };
}

/**
 * @param {Record<string, any>} json
 * @returns {string[]}
 */
function unreadable({ unreadable: items = [] }) {
  return items.map((/** @type {{ error: string }} */ item) => item.error);
}
