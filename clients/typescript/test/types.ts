/** Compiled, not run: the implementation has the types that `index.d.ts` states. */

import type * as declared from "../index.js";
import * as real from "../src/index.js";

type Public<T> = { [K in keyof T]: T[K] };

const client: Public<declared.Client> = new real.Client({ url: "http://127.0.0.1:1" });
const options: ConstructorParameters<typeof declared.Client> = [{ retries: 0 }];
new real.Client(...options);
// @ts-expect-error: a policy is one of three
new real.Client({ onAgentUnavailable: "alow" });

declare const grant: real.Grant;
const held: Public<declared.Grant> = grant;
const limit: typeof declared.limit = real.limit;
const denied: Public<declared.Denied> = new real.Denied("", 429, {}, {});
const unavailable: Public<declared.Unavailable> = new real.Unavailable("", "no");
const misconfigured: declared.Unavailable & Public<declared.Misconfigured> = new real.NotConfigured("", "no");

async function calls(): Promise<void> {
  const limits = [limit.perMinute("rpm", 60, { burst: 100 }), limit.slots("slots", 5)];
  const take = { rpm: { atLeast: 1, atMost: 5 } };
  const taken = await client.acquire("a", "api", take, { limits, onUnavailable: "local 25" });
  await taken.adjust({ rpm: 2 }, { bucket: 0 });
  const starts: Date | null = (await client.acquire("a", "api", take, { queueMs: 1, now: true })).startsAt;
  // @ts-expect-error: now is true or false
  await client.acquire("a", "api", take, { queueMs: starts ? 1 : 2, now: "now" });
  // @ts-expect-error: a class is text
  await client.acquire("a", "api", take, { class: 5 });
  const callerClass: string | null = (await client.setLimits({ entity: "a", class: "batch" })).after?.class ?? null;
  await client.acquireAll([{ entity: "a", resource: "api", take, class: callerClass ?? undefined }]);
  const used: number | string | undefined = (await client.usage({ entity: "a", start: new Date(0), end: new Date() })).tokens.rpm;
  const { next } = await client.usageRows({ resource: "api", by: "hour", start: new Date(0), end: new Date() });
  await client.usageRows({ resource: String(used), start: new Date(0), end: new Date(), page: next ?? undefined });
  const effective: declared.EffectiveLimits = await client.limits("a", "api");
  const kind: declared.Level["kind"] | undefined = effective.buckets[0]?.level?.kind;
  const plan: string = effective.missingPlan ?? effective.levels[0]?.level.plan ?? "free";
  await client.usage({ plan, resource: "api", start: new Date(0), end: new Date() });
  await client.deleteLimits({ plan });
  const change = await client.setLimits({ system: true, limits: ["rpm=5/minute", ...limits], status: "enforced" });
  const status: declared.Status | undefined = change.before?.status;
  // @ts-expect-error: a status is one of three
  await client.setLimits({ entity: kind ?? status, status: "off" });
  const until: Date | null = await taken.vendorSaid(await fetch("https://api.example"));
  await client.reportVendor("a", "api", { status: 429, headers: { "retry-after": `${until}` } });
  // @ts-expect-error: a status is a number
  await client.reportVendor("a", "api", { status: "429" });
  const text: string = await client.scope("a", "api", { rpm: 1 }, async () => "done");
  const length: number = await client.scope("a", "api", { rpm: 1 }, { waitMs: 100 }, () => text.length);
  // @ts-expect-error: an amount is a number
  await client.acquire("a", "api", { rpm: "1" });
  // @ts-expect-error: options are checked
  await client.acquire("a", "api", { rpm: length }, { wait: 1 });
}

export { calls, denied, held, misconfigured, unavailable };
