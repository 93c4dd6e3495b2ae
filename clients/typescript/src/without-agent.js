/** What a client decides in place of an agent that is unavailable. */

/** @import { Request } from "./request.js" */
/** @import { Response } from "./transport.js" */

import { oneOf } from "./check.js";
import { Denied, Unavailable } from "./errors.js";

/** Token of a grant for which the agent took nothing, so its settlements change nothing. */
export const WITHOUT_AGENT = "without-agent";
const DEGRADED = { "x-ratelimit-degraded": "true" };

/** @param {unknown} given */
export function policyOf(given) {
  return oneOf("onAgentUnavailable", given, ["raise", "deny", "allow"], '"raise", "deny" or "allow"');
}

/**
 * Returns the answer to an acquire that had none, or throws. What only a repair ends is thrown by any policy.
 *
 * @param {string} policy
 * @param {Request} asked
 * @param {unknown} error
 * @returns {Response}
 */
export function answerWithoutAgent(policy, asked, error) {
  if (policy === "raise" || !(error instanceof Unavailable) || !error.isTransient) throw error;
  if (policy === "deny") {
    // Without the error, which names the agent: the problem is for the service's own callers.
    const detail = "the limits of this request could not be checked at the moment: try again";
    const problem = { type: "about:blank", title: "Too Many Requests", status: 429, detail };
    const denied = new Denied(detail, 429, { ...DEGRADED, "retry-after": "1" }, { ...problem, retry_after: 1, retry_after_ms: 1_000 });
    denied.cause = error;
    throw denied;
  }
  const body = JSON.parse(asked.body);
  /** @type {{ take: Record<string, any> }[]} */
  const buckets = body.buckets ?? [body];
  const granted = {
    grant: WITHOUT_AGENT,
    lease: null,
    amounts: buckets.map(({ take }) =>
      Object.fromEntries(Object.entries(take).map(([limit, amount]) => [limit, amount.at_most ?? amount])),
    ),
    limits: [],
    would_deny: null,
    degraded: { reason: `without the agent: ${error.message}` },
  };
  return { status: 200, headers: DEGRADED, body: Buffer.from(JSON.stringify(granted)), hide: (value) => value };
}
