/**
 * Client of weirgate-agent. `index.d.ts` describes what this exports.
 *
 * - `client`: acquire, scope, peek
 * - `grant`: what was taken, and what settles it
 * - `request`, `answer`: JSON of both directions; answers become values or errors
 * - `transport`, `endpoint`: connections, and where the agent is
 */

export { Client } from "./client.js";
export { Grant } from "./grant.js";
export { limit } from "./values.js";
export {
  Denied,
  Disabled,
  InvalidRequest,
  Misconfigured,
  NeverFits,
  NotAllowed,
  NotConfigured,
  Refused,
  Unauthorized,
  Unavailable,
  WeirgateError,
} from "./errors.js";
