/**
 * Shapes of the agent's answers. A shape says whether a JSON value has it, so no answer fails later. `shape.py` of the
 * client for Python has the same shapes.
 */

/** @typedef {(value: any) => boolean} Shape */

const MOST = 2 ** 63;
const LAST_INSTANT = 8_640_000_000_000_000;

/** @type {Shape} */
const text = (value) => typeof value === "string";
/** @type {Shape} */
const someText = (value) => text(value) && value !== "";
/** @type {Shape} */
const flag = (value) => typeof value === "boolean";
/** @type {Shape} */
const number = (value) => typeof value === "number" && Number.isFinite(value);
/** @type {Shape} */
const whole = (value) => Number.isInteger(value) && Math.abs(value) <= MOST;
/** @type {Shape} */
const span = (value) => whole(value) && value >= 0;
/** @type {Shape} */
const instant = (value) => span(value) && value <= LAST_INSTANT;
/** @type {(value: any) => boolean} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @type {(...texts: string[]) => Shape} */
const oneOf = (...texts) => (value) => texts.includes(value);
/** @type {(shape: Shape) => Shape} */
const nullOr = (shape) => (value) => value === null || shape(value);
/** @type {(shape: Shape) => Shape} */
const listOf = (shape) => (value) => Array.isArray(value) && value.every(shape);
/** @type {(shape: Shape) => Shape} */
const mapOf = (shape) => (value) => isObject(value) && Object.values(value).every(shape);

/**
 * An object with these fields, and maybe others.
 *
 * @param {Record<string, Shape>} shapes
 * @returns {Shape}
 */
function fields(shapes) {
  const required = Object.entries(shapes);
  /** @type {(value: any) => (field: [string, Shape]) => boolean} */
  const has = (value) => ([name, shape]) => Object.hasOwn(value, name) && shape(value[name]);
  return (value) => isObject(value) && required.every(has(value));
}

/**
 * An object that may have these fields, and others.
 *
 * @param {Record<string, Shape>} shapes
 * @returns {Shape}
 */
function optionalFields(shapes) {
  const known = Object.entries(shapes);
  /** @type {(value: any) => (field: [string, Shape]) => boolean} */
  const mayHave = (value) => ([name, shape]) => !Object.hasOwn(value, name) || shape(value[name]);
  return (value) => isObject(value) && known.every(mayHave(value));
}

const LEASE = nullOr(fields({ expires_at_ms: instant }));
const AMOUNTS = listOf(mapOf(number));
/** @type {(...shapes: Shape[]) => Shape} */
const and = (...shapes) => (value) => shapes.every((shape) => shape(value));
const STATUS_OF_LIMIT = fields({
  entity: text,
  resource: text,
  limit: text,
  mode: oneOf("enforced", "shadow", "soft"),
  capacity_tokens: number,
  refill_tokens: number,
  refill_period_ms: span,
  available_tokens: number,
  requested_tokens: number,
  is_requested: flag,
  retry_after_ms: nullOr(span),
});
const OF_SOME = optionalFields({
  window: mapOf((value) => text(value) || number(value)),
  resets_at_ms: instant,
  paused_ms: span,
});
const LIMITS = listOf(and(STATUS_OF_LIMIT, OF_SOME));

const TAKEN = fields({
  grant: someText,
  lease: LEASE,
  amounts: AMOUNTS,
  limits: LIMITS,
  would_deny: nullOr(fields({ limits: LIMITS })),
  degraded: nullOr(fields({ reason: text })),
});
export const GRANTED = and(TAKEN, optionalFields({ starts_at_ms: instant, missing_plan: someText }));
export const SETTLED = fields({
  grant: nullOr(someText),
  settlement: oneOf("settled", "lease_gone"),
  lease: LEASE,
  amounts: AMOUNTS,
});
export const REPORTED = fields({ paused_until_ms: nullOr(instant) });
const STATUS = oneOf("enforced", "disabled", "unlimited");
export const BALANCES = fields({
  status: STATUS,
  limits: LIMITS,
  retry_after_ms: nullOr(span),
});
/** @type {(...shapes: Shape[]) => Shape} */
const or = (...shapes) => (value) => shapes.some((shape) => shape(value));
/** @type {(most: number) => Shape} */
const within = (most) => (value) => Number.isInteger(value) && value >= 1 && value <= most;
const NAMED = fields({ name: someText, mode: oneOf("enforced", "shadow", "soft") });
const TOKENS = within(10 ** 12);
const PERIOD = within(366 * 86_400_000);
const RATE = and(NAMED, fields({ capacity_tokens: TOKENS, refill_tokens: TOKENS, refill_period_ms: PERIOD }));
const QUOTA = fields({ quota_tokens: TOKENS, text: (value) => text(value) && /^[^/]*\/[^,]/.test(value) });
/** @param {any} value */
const isScheduled = (value) => value.schedule === undefined || (text(value.text) && /.,schedule=./.test(value.text));
/** @type {Shape} */
const percent = (value) => Number.isInteger(value) && value >= 0 && value <= 99;
const CLASSES = optionalFields({ classes: mapOf(fields({ at_least_percent: percent, leaves_percent: percent })) });
const CONFIGURED = listOf(and(or(and(RATE, CLASSES), and(NAMED, fields({ slots: TOKENS })), and(NAMED, QUOTA)), isScheduled));
const LEVEL = or(
  fields({ level: oneOf("entity_resource"), entity: someText, resource: someText }),
  fields({ level: oneOf("entity"), entity: someText }),
  fields({ level: oneOf("plan_resource"), plan: someText, resource: someText }),
  fields({ level: oneOf("plan"), plan: someText }),
  fields({ level: oneOf("resource"), resource: someText }),
  fields({ level: oneOf("system") }),
);
const CONFIG = nullOr(
  and(fields({ limits: CONFIGURED, status: STATUS, is_shadow: flag }), optionalFields({ class: someText })),
);
const IN_FORCE = fields({
  buckets: listOf(fields({ entity: text, level: nullOr(LEVEL), status: nullOr(STATUS), limits: CONFIGURED })),
  levels: listOf(fields({ level: LEVEL, config: CONFIG, is_from_file: flag })),
});
export const EFFECTIVE = and(IN_FORCE, optionalFields({ missing_plan: someText }));
export const CHANGED = fields({ changed: flag, before: CONFIG, after: CONFIG });
const USED = fields({
  usage: fields({ tokens: mapOf((value) => number(value) || text(value)), acquires: whole }),
  state: oneOf("interim", "final", "unknown"),
  complete_until_ms: instant,
});
const UNREADABLE = optionalFields({ unreadable: listOf(fields({ error: text })) });
const ROW = and(USED, fields({ entity: text, resource: text, start_ms: instant, end_ms: instant }));
export const USAGE_TOTAL = and(USED, UNREADABLE);
export const USAGE_PAGE = and(fields({ items: listOf(ROW), next: nullOr(someText) }), UNREADABLE);
const MEMBERS = optionalFields({
  type: text,
  detail: text,
  retry: flag,
  grant: someText,
  retry_after_ms: nullOr(span),
  starts_in_ms: span,
  missing_plan: someText,
  paused: flag,
  "violated-policies": listOf(text),
  blocking: fields({ policy: text, quota: whole, remaining: whole, requested: whole }),
});
/** Every problem of the agent has `applied`, and those of other servers have not. */
export const PROBLEM = and(fields({ applied: oneOf("no", "unknown") }), MEMBERS);
