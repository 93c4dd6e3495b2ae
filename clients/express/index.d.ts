import type { IncomingMessage, ServerResponse } from "node:http";

import type { Client, Grant, Limit, Take } from "weirgate";

export interface RateLimitOptions<Request extends IncomingMessage> {
  client: Client;
  resource: string;
  /**
   * Returns the entity that pays for a request. Authenticate first: it must be the result of an authentication, and not
   * what a client can choose. Without an entity the answer is 401, and 400 if it is no name of Weirgate.
   */
  key: (request: Request) => string | null | undefined | Promise<string | null | undefined>;
  /**
   * Decides without the agent, and without DynamoDB: `"allow"` passes requests, `"deny"` answers 429. What only a repair
   * ends is answered 500 by either. The client's own `onAgentUnavailable` is not used.
   */
  onUnavailable: "allow" | "deny";
  /** Amounts by limit; `{ requests: 1 }` by default. For null from a function a request passes without a limit. */
  take?: Take | ((request: Request) => Take | null | Promise<Take | null>) | undefined;
  /** Limits, or their texts; those of the table, by default. */
  limits?: readonly (Limit | string)[] | undefined;
  waitMs?: number | undefined;
  /** When slots return if this process dies; 60,000 by default. It is renewed until the response ends. */
  leaseMs?: number | undefined;
  timeoutMs?: number | undefined;
}

/** What the middleware adds to `response.locals`, except for a request without a limit. */
export interface RateLimitLocals {
  grant?: Grant;
}

/** Returns middleware that acquires before each request, and answers a denial itself. */
export declare function rateLimit<Request extends IncomingMessage>(
  options: RateLimitOptions<Request>,
): (request: Request, response: ServerResponse, next: (error?: unknown) => void) => Promise<void>;
