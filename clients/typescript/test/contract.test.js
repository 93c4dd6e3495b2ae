/** The contract of the agent (`clients/contract`), through this client. */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { after, before, test } from "node:test";

import { Client, Denied, Disabled, InvalidRequest, NeverFits, NotAllowed, limit } from "weirgate";

import { Agent, Backend, CONTRACT, withoutDatabase } from "./stack.js";

const files = readdirSync(CONTRACT)
  .filter((name) => name.endsWith(".json"))
  .sort()
  .map((name) => JSON.parse(readFileSync(CONTRACT + name, "utf8")));

let backend;
const agents = {};

before(async () => {
  backend = await Backend.start();
  const changing = { WEIRGATE_AGENT_ALLOW_LIMIT_CHANGES: "true" };
  agents.available = await Agent.start({ ...backend.variables, ...changing });
  const limitsFile = { WEIRGATE_AGENT_LIMITS_FILE: `${CONTRACT}agent.yaml` };
  agents.with_file = await Agent.start({ ...backend.variables, ...changing, ...limitsFile });
  agents.unchanging = await Agent.start(backend.variables);
  agents.unavailable = await Agent.start({ ...withoutDatabase, ...changing });
  agents.without_table = await Agent.start({ ...backend.variables, ...changing, WEIRGATE_TABLE: "missing" });
});

after(async () => {
  await Promise.all([...Object.values(agents), ...(backend ? [backend] : [])].map((started) => started.stop()));
});

for (const file of files) {
  for (const scenario of file.scenarios) {
    test(scenario.name, { timeout: 60_000 }, () => check(file, scenario));
  }
}

async function check(file, { name: scenarioName, steps }) {
  const kind = file.has_file ? "with_file" : (file.database ?? "available");
  const agent = file.allows_limit_changes === false ? agents.unchanging : agents[kind];
  const client = new Client({ url: agent.url });
  const prefix = `node:${scenarioName.replace(/[^A-Za-z0-9]/g, "-")}:`;
  const grants = {};
  for (const [place, step] of steps.entries()) {
    if (step.restart) {
      await agent.restart();
      continue;
    }
    let answer;
    let name = step.as;
    if (step.settle) {
      const { token, ...request } = step.settle;
      name ??= request.grant;
      request.grant = token ?? grants[request.grant];
      answer = await answered(() => settle(client, request));
    } else {
      const calls = { acquire, report, peek, usage, limits, set_limits: setLimits, delete_limits: deleteLimits };
      const [call, request] = Object.entries(calls)
        .map(([kind, call]) => [call, step[kind]])
        .find(([, body]) => body);
      const grant = request.grant && { grant: grants[request.grant] };
      answer = await answered(() => call(client, { ...prepared(request, file.limits, prefix), ...grant }));
    }
    if (name && answer.grant) grants[name] = answer.grant;
    for (const [key, named] of Object.entries(step.expect)) {
      const expected = expectation(key, named, file.limits);
      assert.ok(
        holds(key, expected, answer),
        `step ${place}: ${key} must be ${JSON.stringify(expected)}, got ${JSON.stringify(answer)}`,
      );
    }
  }
  client.close();
}

async function acquire(client, request) {
  const options = {
    waitMs: request.wait_ms,
    queueMs: request.queue_ms,
    now: request.answer === "now",
    leaseMs: request.lease_ms,
    timeoutMs: request.timeout_ms,
    onUnavailable: request.on_unavailable,
    bypass: request.bypass,
  };
  if (request.buckets) return held("granted", await client.acquireAll(request.buckets.map(bucket), options));
  const { entity, resource, take, ...ofBucket } = bucket(request);
  return held("granted", await client.acquire(entity, resource, take, { ...options, ...ofBucket }));
}

async function settle(client, request) {
  const grant = client.restore(request.grant);
  const options = { bucket: request.bucket };
  let outcome = "settled";
  if (request.take_more) await grant.takeMore(request.take_more, options);
  else if (request.end === "release") outcome = await grant.release(request.adjust);
  else if (request.end === "roll_back") outcome = await grant.rollBack();
  else if (request.renew_ms) outcome = await grant.renew(request.renew_ms);
  else if (request.adjust) outcome = await grant.adjust(request.adjust, options);
  else outcome = await grant.giveBack(request.give_back, options);
  return held(outcome, grant);
}

async function report(client, { grant, entity, resource, vendor }) {
  const until = grant ? client.restore(grant).vendorSaid(vendor) : client.reportVendor(entity, resource, vendor);
  const ms = (await until)?.getTime();
  return { outcome: "reported", paused_ms: ms === undefined ? null : ms - Date.now() };
}

async function peek(client, { entity, resource, need, limits }) {
  const balances = await client.peek(entity, resource, { need, limits: limits?.map(limitOf) });
  return {
    outcome: "balances",
    status: balances.status,
    remaining: Object.fromEntries(balances.limits.map((status) => [status.limit, status.available])),
    retry_after_ms: balances.retryAfterMs,
  };
}

/** Asks for usage from yesterday to the end of today. */
async function usage(client, { scope, by, total, page }) {
  const day = 86_400_000;
  const today = Date.now() - (Date.now() % day);
  const asked = { ...scope, by, start: new Date(today - day), end: new Date(today + day) };
  if (total) {
    const { tokens, acquires, state } = await client.usage(asked);
    return { outcome: "usage", used: tokens, acquires, state };
  }
  const last = (await client.usageRows({ ...asked, page })).rows.at(-1);
  return { outcome: "rows", used: last?.tokens, acquires: last?.acquires ?? 0, state: last?.state };
}

async function limits(client, { entity, resource }) {
  const [bucket] = (await client.limits(entity, resource)).buckets;
  return { outcome: "limits", level: bucket.level?.kind ?? null, status: bucket.status, limits: plain(bucket.limits) };
}

async function setLimits(client, { level, limits, status, is_shadow: isShadow, class: callerClass, replace, author }) {
  const settings = { limits: limits?.map(limitOf), status, isShadow, class: callerClass, replace, author };
  return changed(await client.setLimits({ ...of(level), ...settings }));
}

async function deleteLimits(client, { level, author }) {
  return changed(await client.deleteLimits({ ...of(level), author }));
}

const of = ({ level, ...names }) => (level === "system" ? { system: true } : names);

function changed({ isChanged, before, after }) {
  const limits = (config) => config && plain(config.limits);
  const outcome = isChanged ? "changed" : "unchanged";
  return { outcome, before: limits(before), after: limits(after), class: after && after.class };
}

/** Returns limits in the order of their names. */
function plain(limits) {
  return [...limits].sort((one, other) => (one.name < other.name ? -1 : 1));
}

async function answered(call) {
  try {
    return await call();
  } catch (error) {
    const text = error.message;
    if (error instanceof Denied) {
      const times = { retry_after_ms: error.retryAfterMs, starts_ms: error.startsInMs };
      const plan = { missing_plan: error.missingPlan };
      return { outcome: "denied", short: error.limits, paused: error.isPaused, ...times, ...plan, text };
    }
    if (error instanceof NeverFits) {
      return { outcome: "never_fits", short: error.limits, missing_plan: error.missingPlan, text };
    }
    if (error instanceof Disabled) return { outcome: "disabled", text };
    if (error instanceof NotAllowed) return { outcome: "not_allowed", applied: "no", text };
    if (error instanceof InvalidRequest) return { outcome: "invalid", applied: "no", text };
    const outcome = { NotConfigured: "not_configured", Misconfigured: "misconfigured", Unavailable: "unavailable" }[error.name];
    if (outcome) return { outcome, applied: error.applied, text };
    throw error;
  }
}

function held(outcome, grant) {
  return {
    outcome,
    grant: grant.isEnded ? null : grant.token,
    ended: grant.isEnded,
    amounts: grant.amounts,
    remaining: Object.fromEntries(grant.limits.map((status) => [status.limit, status.available])),
    lease: grant.expiresAt !== null,
    starts_ms: grant.startsAt && grant.startsAt.getTime() - Date.now(),
    would_deny: grant.wouldDeny,
    degraded: grant.degraded !== null,
    missing_plan: grant.missingPlan,
  };
}

function bucket({ entity, resource, take, limits, class: callerClass }) {
  const amounts = Object.entries(take).map(([name, amount]) => [
    name,
    typeof amount === "object" ? { atLeast: amount.at_least, atMost: amount.at_most } : amount,
  ]);
  return { entity, resource, take: Object.fromEntries(amounts), limits: limits?.map(limitOf), class: callerClass };
}

function limitOf(json) {
  if (typeof json === "string") return json;
  const { name, slots, capacity_tokens: burst, refill_tokens: refill, refill_period_ms: periodMs, mode, classes } = json;
  if (slots !== undefined) return limit.slots(name, slots, { mode });
  const of = ([name, percent]) => `${name}:${percent.at_least_percent}%:${percent.leaves_percent}%`;
  const rate = limit.rate(name, refill, periodMs, { burst, mode });
  return classes ? { ...rate, classes: Object.entries(classes).map(of).join(",") } : rate;
}

/** Returns the request with its named limits, and with entities of this scenario alone. */
function prepared(request, named, prefix) {
  const { entity, limits, buckets, scope, level } = request;
  return {
    ...request,
    ...(entity && { entity: entity === "orphan" ? entity : prefix + entity }),
    ...(scope && { scope: prepared(scope, named, prefix) }),
    ...(typeof level === "object" && { level: prepared(level, named, prefix) }),
    ...(limits && { limits: limits.map((name) => named[name]) }),
    ...(buckets && { buckets: buckets.map((one) => prepared(one, named, prefix)) }),
  };
}

/** Returns an expectation with limits in place of their names. */
function expectation(key, expected, named) {
  const isOfLimits = ["limits", "before", "after"].includes(key) && expected !== null;
  return isOfLimits ? plain(expected.map((name) => limitOf(named[name]))) : expected;
}

/** Returns whether an answer keeps an expectation, as `clients/contract/README.md` says. */
function holds(key, expected, answer) {
  const actual = answer[key];
  switch (key) {
    case "outcome":
    case "lease":
    case "ended":
    case "degraded":
    case "applied":
    case "status":
    case "paused":
    case "acquires":
    case "state":
    case "level":
    case "class":
    case "missing_plan":
      return actual === expected;
    case "short":
    case "would_deny":
      return JSON.stringify(actual) === JSON.stringify(expected);
    case "amounts":
    case "limits":
    case "before":
    case "after":
    case "used":
      try {
        assert.deepEqual(actual, expected);
        return true;
      } catch {
        return false;
      }
    case "remaining":
      // A limit that refills may have gained while the scenario ran.
      return Object.entries(expected).every(([name, tokens]) => {
        const gained = actual?.[name] - tokens;
        return gained >= 0 && gained < 0.01;
      });
    case "retry_after_ms":
    case "starts_ms":
    case "paused_ms":
      return expected === null ? actual === null : actual !== null && expected[0] <= actual && actual <= expected[1];
    case "mentions":
      return expected.every((word) => answer.text?.includes(word));
    default:
      throw new Error(`there is no expectation ${key}: correct the scenario`);
  }
}
