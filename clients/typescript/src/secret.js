/**
 * What an error or a field of an answer shows, without the token of the requests. `secret.py` of the client for Python
 * does the same.
 */

/** @typedef {<T>(value: T) => T} Hide */

const HIDDEN = "***";
const ENCODED = /(?:\\u00|%)([0-9a-f]{2})/gi;
const MOST_ENCODINGS = 3;
const LONE_SURROGATES = /\p{Surrogate}/gu;

/**
 * Returns a function that returns a JSON value without the secret, in keys too, and with text that UTF-8 can have. A
 * text that has the secret in another case or encoding, such as JSON within JSON, is hidden whole.
 *
 * @param {string} secret
 * @returns {Hide}
 */
export function hiding(secret) {
  const bare = bareOf(secret);
  /** @type {(value: any) => any} */
  const hide = (value) => {
    if (typeof value === "string") {
      const whole = value.replace(LONE_SURROGATES, "\ufffd");
      const text = secret ? whole.replaceAll(secret, HIDDEN) : whole;
      return bare && has(text, bare) ? HIDDEN : text;
    }
    if (Array.isArray(value)) return value.map(hide);
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [hide(name), hide(part)]));
  };
  return hide;
}

/**
 * Returns whether a text has a bare one, in the encodings of JSON and URLs too, or in several of them.
 *
 * @param {string} text
 * @param {string} bare
 */
function has(text, bare) {
  for (let encodings = 0; encodings < MOST_ENCODINGS; encodings += 1) {
    if (bareOf(text).includes(bare)) return true;
    text = text.replace(ENCODED, (_, hex) => String.fromCharCode(parseInt(hex, 16)));
  }
  return bareOf(text).includes(bare);
}

/**
 * Returns the text in lowercase and without backslashes, whose number depends on the encodings.
 *
 * @param {string} text
 */
function bareOf(text) {
  return text.replaceAll("\\", "").toLowerCase();
}
