/**
 * Rate limits and concurrency limits by weirgate-agent. Times are milliseconds, amounts are tokens.
 *
 *     const client = new Client();
 *     const answer = await client.scope("openai", "gpt-4", { tpm: 1500, slots: 1 }, async (grant) => {
 *       const answer = await askTheModel();
 *       await grant.adjust({ tpm: answer.tokens });
 *       return answer;
 *     });
 */

/** Takes as much as there is, between both amounts. */
export interface UpTo {
  atLeast: number;
  atMost: number;
}

/** Amounts by limit: whole, or with at most three decimal places. */
export type Take = Readonly<Record<string, number | UpTo>>;

export type Amounts = Readonly<Record<string, number>>;

export type Mode = "enforced" | "shadow" | "soft";

export type Kind = "rate" | "slots" | "quota";

/** Whether limits apply. */
export type Status = "enforced" | "disabled" | "unlimited";

export type Interval = "hour" | "day" | "month";

/** `"interim"` may still change, `"final"` does not, and of `"unknown"` a part may no longer be kept. */
export type UsageState = "interim" | "final" | "unknown";

/** The decision without DynamoDB; a percentage of each limit with `local`. */
export type OnUnavailable = "error" | "deny" | "allow" | `local ${number}`;

/** The decision of an acquire without the agent. */
export type OnAgentUnavailable = "raise" | "deny" | "allow";

/** A rate, slots if `refill` and `periodMs` are 0, or a quota. Made by `limit`, which refuses impossible ones. */
export interface Limit {
  readonly name: string;
  readonly capacity: number;
  /** Tokens every `periodMs`. */
  readonly refill: number;
  readonly periodMs: number;
  readonly mode: Mode;
  /** Window of a quota: `month,day=15,at=09:00,tz=Europe/Berlin`, or `5h` from the first use. */
  readonly window?: string | undefined;
  /** Rules that scale a configured limit: `0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin`. The agent checks them. */
  readonly schedule?: string | undefined;
  /** Classes of callers of a rate: `batch:10%:30%,night:5%`. The agent checks them. */
  readonly classes?: string | undefined;
}

export interface LimitOptions {
  /** Capacity of a rate; as much as it refills, by default. */
  burst?: number;
  /** `"enforced"` by default. */
  mode?: Mode;
}

/** Makes limits, or throws `InvalidRequest`. */
export declare const limit: {
  rate(name: string, refill: number, periodMs: number, options?: LimitOptions): Limit;
  perSecond(name: string, tokens: number, options?: LimitOptions): Limit;
  perMinute(name: string, tokens: number, options?: LimitOptions): Limit;
  perHour(name: string, tokens: number, options?: LimitOptions): Limit;
  perDay(name: string, tokens: number, options?: LimitOptions): Limit;
  /** A concurrency limit: its tokens come back only when a lease ends. */
  slots(name: string, slots: number, options?: { mode?: Mode }): Limit;
  /**
   * So many tokens in each window, of which the next one begins full. The agent checks the window: `month`,
   * `week,day=sunday`, `day,at=09:00,tz=Europe/Berlin`, or `5h` from the first use.
   */
  quota(name: string, tokens: number, window: string, options?: { mode?: Mode }): Limit;
};

/** What a request takes of one entity on one resource. */
export interface Bucket {
  entity: string;
  resource: string;
  take: Take;
  /** Limits of the bucket, each made by `limit` or as its text, `rpm=600/minute`; those of the table, by default. */
  limits?: readonly (Limit | string)[] | undefined;
  limitsVersion?: number | undefined;
  /** Whether it takes of the entity's parents too, with limits given here. */
  cascading?: boolean | undefined;
  /** Class of the caller, of limits with classes. The class of the entity's configuration counts instead. */
  class?: string | undefined;
}

export interface CallOptions {
  /**
   * Gives the call up. What an acquire took returns: the agent drops it, or if it has answered already, the client rolls
   * back in the background. A settlement goes on, and only the wait for its answer ends.
   */
  signal?: AbortSignal | undefined;
}

export interface AcquireAllOptions extends CallOptions {
  /** How long to wait for the tokens. */
  waitMs?: number | undefined;
  /**
   * How long to wait in line instead, up to an hour: callers of all processes are served in the order of their acquires,
   * if all callers of the bucket queue. The grant comes at its start.
   */
  queueMs?: number | undefined;
  /** Whether the grant comes at once. Until its `startsAt` it may only be rolled back. Needs `queueMs`. */
  now?: boolean | undefined;
  /** When the tokens come back if this process dies. Slots always have a lease, of 60 s by default. */
  leaseMs?: number | undefined;
  /** Time for the decision, without the wait. */
  timeoutMs?: number | undefined;
  /** The decision without DynamoDB. */
  onUnavailable?: OnUnavailable | undefined;
  /** The decision without the agent, as that of the client, which is the default. */
  onAgentUnavailable?: OnAgentUnavailable | undefined;
  /** Counts the amounts, and takes none of them. */
  bypass?: boolean | undefined;
}

export interface AcquireOptions extends AcquireAllOptions {
  limits?: readonly (Limit | string)[] | undefined;
  limitsVersion?: number | undefined;
  cascading?: boolean | undefined;
  class?: string | undefined;
}

/**
 * A vendor's response: of `fetch` or axios, an error of a vendor's client, or its status and headers. Only the fields of
 * limits are sent.
 */
export interface VendorResponse {
  readonly status?: number | undefined;
  readonly headers?: object | undefined;
}

export interface PeekOptions extends CallOptions {
  /** Amounts of which the answer says when they will be there. */
  need?: Amounts | undefined;
  limits?: readonly (Limit | string)[] | undefined;
}

export interface UsageOptions extends CallOptions {
  /** Whose usage: `entity` or `plan`, `resource`, or both. */
  entity?: string | undefined;
  /** The entities that have the plan now. */
  plan?: string | undefined;
  resource?: string | undefined;
  /** `"day"` by default. */
  by?: Interval | undefined;
  /** The start of an hour, a day or a month in UTC, as `by` says. */
  start: Date;
  end: Date;
}

export interface UsageRowsOptions extends UsageOptions {
  /** `next` of the page before. */
  page?: string | undefined;
}

/** A level of the table: an entity or a plan, a resource, or both, or with `system` alone the whole namespace. */
export interface OfLevel {
  entity?: string | undefined;
  plan?: string | undefined;
  resource?: string | undefined;
  system?: true | undefined;
}

export interface DeleteLimitsOptions extends OfLevel, CallOptions {
  /** Who changes the limits, for the audit event; it has the agent's owner too. */
  author?: string | undefined;
}

/** What is not named stays. */
export interface SetLimitsOptions extends DeleteLimitsOptions {
  /** Limits to set, or their texts: `"rpm=600/minute"`. */
  limits?: readonly (Limit | string)[] | undefined;
  /** Whether the limits apply. */
  status?: Status | undefined;
  /** Whether all limits of the level only count what they would deny. */
  isShadow?: boolean | undefined;
  /** Class of the callers of the level's entities, whatever a request says. */
  class?: string | undefined;
  /** Drops all limits and settings of the level that are not named. */
  replace?: boolean | undefined;
}

export interface SettleOptions extends CallOptions {
  /** Place of the one bucket to change, from 0. Each that has the limit, by default. */
  bucket?: number | undefined;
}

export interface ClientOptions {
  /** `http://host:port` or `unix:/path`. Default: `WEIRGATE_AGENT_URL`, or `http://127.0.0.1:2774`. */
  url?: string;
  /** Default: `WEIRGATE_AGENT_TOKEN`, or in a Lambda function `AWS_SESSION_TOKEN`. */
  token?: string;
  /** How long a call waits for the agent, beside its own `waitMs`, `queueMs` and `timeoutMs`. Default: 10,000. */
  answerTimeoutMs?: number;
  /** How often a call is sent again, which it is only if nothing was applied. Default: 2. */
  retries?: number;
  /** Connections that are kept while they are idle. Default: 10. */
  maxIdle?: number;
  /**
   * What an acquire does, after its retries, if the agent is down or has no decision for now. `"raise"`, the default,
   * throws `Unavailable`; `"deny"` throws `Denied`; `"allow"` grants: such a grant is `degraded`, and its settlements
   * change nothing. What only a repair ends, such as a wrong token or missing limits, is thrown in any case.
   */
  onAgentUnavailable?: OnAgentUnavailable;
}

/** One limit of a bucket. */
export interface LimitStatus {
  readonly entity: string;
  readonly resource: string;
  readonly limit: string;
  readonly kind: Kind;
  readonly mode: Mode;
  readonly capacity: number;
  readonly refill: number;
  readonly periodMs: number;
  /** Balance; negative in debt. */
  readonly available: number;
  readonly requested: number;
  readonly isRequested: boolean;
  /** Time until `requested` is there; null if time alone does not help. */
  readonly retryAfterMs: number | null;
  /** End of a quota's window; null for other limits, and for a session before its first use. */
  readonly resetsAt: Date | null;
  /** Time until the bucket's pause ends, before which nothing is granted; null without one. */
  readonly pausedForMs: number | null;
}

export interface Balances {
  readonly status: Status;
  readonly limits: readonly LimitStatus[];
  /** Time until all that is needed is there; null if time alone does not help. */
  readonly retryAfterMs: number | null;
  /** The `RateLimit` fields, for an HTTP response. */
  readonly headers: Readonly<Record<string, string>>;
}

export interface Usage {
  /** By limit; text where no number is exact, above 15 digits. */
  readonly tokens: Readonly<Record<string, number | string>>;
  readonly acquires: number;
  readonly state: UsageState;
  /** All usage before is included. */
  readonly completeUntil: Date;
}

export interface UsageTotal extends Usage {
  /** Items that cannot be read, whose usage is missing: what is wrong with each, and what to do. */
  readonly unreadable: readonly string[];
}

/** Usage of an entity on a resource in one interval. */
export interface UsageRow extends Usage {
  readonly entity: string;
  readonly resource: string;
  readonly start: Date;
  readonly end: Date;
}

export interface UsagePage {
  readonly rows: readonly UsageRow[];
  /** `page` of the next one; null after the last. A page before it may be empty. */
  readonly next: string | null;
  /** As that of a total. */
  readonly unreadable: readonly string[];
}

/** What limits of the table are for. The names that the kind does not have are null. */
export interface Level {
  readonly kind: "entity_resource" | "entity" | "plan_resource" | "plan" | "resource" | "system";
  readonly entity: string | null;
  readonly plan: string | null;
  readonly resource: string | null;
}

/** The limits of one level. */
export interface Config {
  readonly limits: readonly Limit[];
  readonly status: Status;
  /** Whether all its limits are in shadow mode. */
  readonly isShadow: boolean;
  /** Class of the callers of its entities, whatever a request says; null if the request says it. */
  readonly class: string | null;
}

/** The limits in force for one bucket. */
export interface EffectiveBucket {
  readonly entity: string;
  /** Where the limits come from; null if no level has any. */
  readonly level: Level | null;
  /** Whether the limits apply; null without any. An operator's stop is not a part of it. */
  readonly status: Status | null;
  readonly limits: readonly Limit[];
}

/** A level, and its configuration if it has one. */
export interface ConfiguredLevel {
  readonly level: Level;
  readonly config: Config | null;
  /** Whether it is that of the agent's limits file, so that a change in the table has no effect. */
  readonly isFromFile: boolean;
}

/** The limits in force for an entity on a resource, and where they come from. */
export interface EffectiveLimits {
  /** The bucket of the entity, then of each ancestor that it cascades to and that has limits. */
  readonly buckets: readonly EffectiveBucket[];
  /** The levels of the entity on the resource. The first one with a configuration wins. */
  readonly levels: readonly ConfiguredLevel[];
  /** The entity's plan, if no level of it has limits: those of the resource or the system apply. Null otherwise. */
  readonly missingPlan: string | null;
}

/** The limits of a level before and after a change. */
export interface LimitsChange {
  readonly isChanged: boolean;
  readonly before: Config | null;
  readonly after: Config | null;
}

/** `"lease_gone"`: a lease had already ended, by a release or by its expiry. Nothing of its bucket changed. */
export type Settlement = "settled" | "lease_gone";

/** Acquires by the agent. Share one in a process. */
export declare class Client {
  constructor(options?: ClientOptions);

  /** Where the agent is. */
  readonly url: string;

  /** Takes all amounts, or throws `Denied`, `NeverFits` or `Disabled` and takes none. */
  acquire(entity: string, resource: string, take: Take, options?: AcquireOptions): Promise<Grant>;

  /** Takes of all buckets, or of none. */
  acquireAll(buckets: readonly Bucket[], options?: AcquireAllOptions): Promise<Grant>;

  /**
   * Acquires, runs the work, and settles: releases after it, or rolls back if it throws. If a settlement failed in the
   * work, it releases. Its own failed settlement is left to the lease's expiry, and emitted as a process warning; the
   * outcome of the work stays. The signal also ends the wait for that settlement, which goes on.
   */
  scope<T>(entity: string, resource: string, take: Take, work: (grant: Grant) => T | PromiseLike<T>): Promise<T>;
  scope<T>(
    entity: string,
    resource: string,
    take: Take,
    options: AcquireOptions | undefined,
    work: (grant: Grant) => T | PromiseLike<T>,
  ): Promise<T>;

  /** Returns the grant of a token, to settle it. Sends nothing. */
  restore(token: string): Grant;

  /** Tells what the vendor answered, as `Grant.vendorSaid`, without a grant. */
  reportVendor(entity: string, resource: string, response: VendorResponse, options?: CallOptions): Promise<Date | null>;

  /** Reads the balances, and takes nothing. */
  peek(entity: string, resource: string, options?: PeekOptions): Promise<Balances>;

  /** Reads the balance of one limit; undefined if the bucket does not have it. */
  remaining(entity: string, resource: string, limit: string, options?: PeekOptions): Promise<number | undefined>;

  /** Reads what an entity or the entities of a plan, a resource, or both consumed. */
  usage(options: UsageOptions): Promise<UsageTotal>;

  /** Reads the same by interval, and by bucket. */
  usageRows(options: UsageRowsOptions): Promise<UsagePage>;

  /** Reads the limits in force for an entity on a resource, and the level that they come from. */
  limits(entity: string, resource: string, options?: CallOptions): Promise<EffectiveLimits>;

  /**
   * Sets limits of one level in the table, if the agent was started with `--allow-limit-changes`; otherwise it throws
   * `NotAllowed`. A change holds at once for acquires by this agent, and for others within a minute.
   */
  setLimits(options: SetLimitsOptions): Promise<LimitsChange>;

  /** Deletes the limits of one level, so that the next level with some applies. As `setLimits`. */
  deleteLimits(options: DeleteLimitsOptions): Promise<LimitsChange>;

  /**
   * Closes the idle connections, and the others once the calls in flight have ended: also settlements that go on after
   * their signal, and what a given-up acquire took. Returns when that is done, and never throws.
   */
  close(): Promise<void>;
}

/** Tokens that were taken. Nothing is kept in the agent: the token is the grant. */
export declare class Grant {
  private constructor();
  /** Text that settles the grant, in another process too. Each change makes a new one. */
  readonly token: string;
  /** Amounts of each bucket, by the last answer. Empty after `restore`. */
  readonly amounts: readonly Amounts[];
  /** Expiry of the lease. Null without a lease, and after `restore`. */
  readonly expiresAt: Date | null;
  /**
   * Start of an acquire that queued, which may have passed. It does not move. Null without `queueMs`, without DynamoDB or
   * the agent, and after `restore`.
   */
  readonly startsAt: Date | null;
  readonly isEnded: boolean;
  /**
   * Whether a settlement has failed or is in flight, so the token may be outdated. A scope then releases. A settlement
   * waits for those before it. After one that may have been applied, one that changes amounts throws `InvalidRequest`,
   * because by an outdated token it could count twice. A release without amounts waits for none, and is always possible.
   */
  readonly isUncertain: boolean;
  /** Every limit of the buckets, right after the take. Empty after `restore`. */
  readonly limits: readonly LimitStatus[];
  /** Names of the limits that are short, and do not deny as they are in shadow mode. */
  readonly wouldDeny: readonly string[];
  /** Why the agent decided without DynamoDB, or the client without the agent; null if neither did. */
  readonly degraded: string | null;
  /**
   * Plan of the entity, or of an ancestor, of which no level has a configuration: other levels take its place. Null also
   * after `restore`, and if the agent could not read whether the plan exists.
   */
  readonly missingPlan: string | null;
  /** The `RateLimit` fields, for an HTTP response. */
  readonly headers: Readonly<Record<string, string>>;

  /** Returns the amount taken of a limit, as adjusted. */
  amount(limit: string): number;
  /** Returns the balance of a limit right after the take. */
  remaining(limit: string): number | undefined;

  /** Corrects estimates: `actual` has the amounts that were really used. More than is there becomes debt. */
  adjust(actual: Amounts, options?: SettleOptions): Promise<Settlement>;
  /** Returns a part of what was taken, and keeps the rest. */
  giveBack(unused: Amounts, options?: SettleOptions): Promise<Settlement>;
  /** Takes more within the grant, or throws `Denied` and leaves it as it was. */
  takeMore(more: Amounts, options?: SettleOptions): Promise<void>;
  /** Moves the expiry of the lease to `lastsMs` from now, never to an earlier time. */
  renew(lastsMs: number, options?: CallOptions): Promise<Settlement>;
  /** Ends the grant: slots come back, rate tokens stay used. Adjusts to `actual` in the same call. */
  release(actual?: Amounts, options?: CallOptions): Promise<Settlement>;
  /** Ends the grant and returns everything, as if it had never been taken. */
  rollBack(options?: CallOptions): Promise<Settlement>;
  /**
   * Tells all callers what the vendor answered: a 429, 503 or 529 pauses the buckets until its `retry-after`. Returns the
   * end of the pause; null without one. The grant stays as it is, so settle it as usual.
   */
  vendorSaid(response: VendorResponse, options?: CallOptions): Promise<Date | null>;
  /** For `await using`: releases a grant that has not ended. A failure is a process warning. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** Base of everything that this package throws. */
export declare class WeirgateError extends Error {}

/** The request is wrong, and nothing was taken. The message says what to change. */
export declare class InvalidRequest extends WeirgateError {}

/** The agent refused the token. Nothing was taken. */
export declare class Unauthorized extends WeirgateError {}

/** The agent changes no limits. The message has the option that allows it. Nothing was changed. */
export declare class NotAllowed extends WeirgateError {}

/** The short limit with the longest wait, in whole tokens. */
export interface Blocking {
  readonly limit: string;
  readonly capacity: number;
  readonly remaining: number;
  readonly requested: number;
}

/** Base of the decisions that grant nothing. `status`, `headers` and `problem` are for an HTTP response. */
export declare class Refused extends WeirgateError {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** Members of an `application/problem+json` body. */
  readonly problem: Readonly<Record<string, unknown>>;
  /** Names of the short limits. A limit of another entity, such as a parent, has a number: `rpm#2`. */
  readonly limits: readonly string[];
  readonly blocking: Blocking | null;
  /**
   * Plan of the entity, or of an ancestor, of which no level has a configuration: other levels take its place. Not of
   * `Disabled`.
   */
  readonly missingPlan: string | null;
}

/** Too few tokens now. */
export declare class Denied extends Refused {
  /** Time until the tokens are there, if no other request takes them; null if time alone does not help. */
  readonly retryAfterMs: number | null;
  /** Time until the start that a longer `queueMs` would have; null without one, or if time alone does not help. */
  readonly startsInMs: number | null;
  /** Whether it waits for the end of a pause, for which a vendor asked, or an operator. */
  readonly isPaused: boolean;
}

/** More than a limit's capacity: no wait helps, a smaller amount may. */
export declare class NeverFits extends Refused {}

/** An operator disabled or stopped the resource for the entity. */
export declare class Disabled extends Refused {}

/** No decision, or no answer. */
export declare class Unavailable extends WeirgateError {
  /** `"no"` if nothing was taken or changed; `"unknown"` if the call may have been applied anyway. */
  readonly applied: "no" | "unknown";
  /** Whether the same call may succeed later. */
  readonly isTransient: boolean;
  readonly status: number | null;
  /** Token of a grant whose settlement stopped halfway; the grant has it already. */
  readonly grant: string | null;
}

/** No decision until a repair, such as of a permission or the table, which the message names. Never transient. */
export declare class Misconfigured extends Unavailable {}

/** Limits are neither in the call nor in the table. The message has the command that sets them. */
export declare class NotConfigured extends Misconfigured {}
