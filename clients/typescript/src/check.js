/**
 * What callers give, checked before anything is sent: an exact type and range, or `InvalidRequest`.
 *
 * JSON drops some values of a language and changes others, so only types that it keeps are allowed. `check.py` of the
 * client for Python has the same rules.
 */

import { InvalidRequest } from "./errors.js";

export const MAX_TOKENS = 10 ** 12;
export const DAY_MS = 86_400_000;
const TOKENS = "0 to 10^12 tokens with at most three decimal places";
const SHOWN = 40;

/**
 * Throws the error of a value that breaks a rule.
 *
 * @param {string} what
 * @param {string} rule
 * @param {unknown} given
 * @returns {never}
 */
export function refuse(what, rule, given) {
  throw new InvalidRequest(`${what} must be ${rule}, got ${shown(given)}`);
}

/**
 * Requires text that is not empty.
 *
 * @param {string} what
 * @param {unknown} given
 */
export function text(what, given) {
  return typeof given === "string" && given !== "" ? given : refuse(what, "text that is not empty", given);
}

/**
 * Requires a boolean.
 *
 * @param {string} what
 * @param {unknown} given
 */
export function flag(what, given) {
  return typeof given === "boolean" ? given : refuse(what, "true or false", given);
}

/**
 * Requires a whole number in a range.
 *
 * @param {string} what
 * @param {unknown} given
 * @param {number} least
 * @param {number} most
 * @param {string} rule
 */
export function whole(what, given, least, most, rule) {
  const isWhole = typeof given === "number" && Number.isInteger(given) && !Object.is(given, -0);
  return isWhole && least <= given && given <= most ? given : refuse(what, rule, given);
}

/**
 * Requires an amount of tokens that JSON keeps.
 *
 * @param {string} what
 * @param {unknown} given
 * @returns {number}
 */
export function tokens(what, given) {
  const isInRange = typeof given === "number" && given >= 0 && given <= MAX_TOKENS && !Object.is(given, -0);
  return isInRange && Number(given.toFixed(3)) === given ? given : refuse(what, TOKENS, given);
}

/**
 * Requires an amount of whole tokens.
 *
 * @param {string} what
 * @param {unknown} given
 */
export function wholeTokens(what, given) {
  return whole(what, given, 0, MAX_TOKENS, "0 to 10^12 whole tokens");
}

/**
 * Returns amounts by limit, each checked by `amount`. Requires at least one.
 *
 * @template T
 * @param {string} what
 * @param {unknown} given
 * @param {(what: string, given: unknown) => T} amount
 * @returns {Record<string, T>}
 */
export function amounts(what, given, amount) {
  const entries = ownEntries(given);
  if (!entries?.length) return refuse(what, "an object from limits to amounts, with at least one", given);
  /** @type {Record<string, T>} */
  const checked = Object.create(null);
  for (const [limit, value] of entries) {
    checked[text(`a limit of ${what}`, limit)] = amount(`${what}[${shown(limit)}]`, value);
  }
  return checked;
}

/**
 * Returns whole milliseconds, rounded.
 *
 * @param {string} what
 * @param {unknown} given
 * @param {number} least
 * @param {number} most
 */
export function milliseconds(what, given, least, most) {
  const isInRange = typeof given === "number" && given >= 0 && given <= most && !Object.is(given, -0);
  const ms = isInRange ? Math.round(given) : -1;
  return ms >= least ? ms : refuse(what, `${least} to ${most} milliseconds`, given);
}

/**
 * Returns the milliseconds since 1970 of a date.
 *
 * @param {string} what
 * @param {unknown} given
 */
export function instant(what, given) {
  const ms = given instanceof Date ? given.getTime() : -1;
  return ms >= 0 ? ms : refuse(what, "a Date since 1970", given);
}

/**
 * Requires one of some texts.
 *
 * @template {string} T
 * @param {string} what
 * @param {unknown} given
 * @param {readonly T[]} texts
 * @param {string} rule
 */
export function oneOf(what, given, texts, rule) {
  const found = texts.find((one) => one === given);
  return found === undefined ? refuse(what, rule, given) : found;
}

/**
 * Requires an `AbortSignal`, if there is one.
 *
 * @param {any} given
 * @returns {AbortSignal | undefined}
 */
export function signal(given) {
  const isSignal = given === undefined || typeof given?.throwIfAborted === "function";
  return isSignal ? given : refuse("signal", "an AbortSignal", given);
}

/**
 * Returns a copy of an object with known fields. What others define on all objects is not among them.
 *
 * @param {string} what
 * @param {unknown} given
 * @param {readonly string[]} known
 * @returns {Record<string, any>}
 */
export function fields(what, given, known) {
  const entries = ownEntries(given);
  if (!entries) return refuse(what, "an object", given);
  const copy = Object.create(null);
  for (const [name, value] of entries) {
    if (!known.includes(name)) refuse(`a field of ${what}`, known.join(", "), name);
    copy[name] = value;
  }
  return copy;
}

/**
 * Returns the entries of a plain object. Undefined if it is none, or if JSON would drop or change a part of it.
 *
 * @param {unknown} given
 * @returns {[string, unknown][] | undefined}
 */
function ownEntries(given) {
  if (typeof given !== "object" || given === null) return undefined;
  const parent = Object.getPrototypeOf(given);
  // The root of another realm, such as of a test runner, is none of a class either.
  if (parent !== null && (Object.getPrototypeOf(parent) !== null || !Object.hasOwn(parent, "isPrototypeOf"))) {
    return undefined;
  }
  const entries = Object.entries(given);
  const isWhole = Object.getOwnPropertyNames(given).length === entries.length;
  return isWhole && Object.getOwnPropertySymbols(given).length === 0 ? entries : undefined;
}

/**
 * Returns the beginning of a value for an error. Of other types than those of JSON it names the type alone.
 *
 * @param {unknown} given
 */
export function shown(given) {
  if (typeof given === "string") {
    return JSON.stringify(given.length <= SHOWN ? given : `${given.slice(0, SHOWN)} ...`);
  }
  if (Object.is(given, -0)) return "-0";
  if (typeof given === "number" || typeof given === "boolean" || given === undefined || given === null) {
    return String(given);
  }
  if (Array.isArray(given)) return given.length === 0 ? "[]" : "an array";
  return typeof given === "object" ? "an object" : `a ${typeof given}`;
}
