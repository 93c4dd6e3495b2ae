/** Scopes and settlements, the example, and the installation, against the real agent. */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { inspect } from "node:util";

import { Client, Denied, InvalidRequest, limit } from "weirgate";

import { Agent, Backend } from "./stack.js";

const FOLDER = fileURLToPath(new URL("..", import.meta.url));
const YEAR_MS = 365 * 86_400_000;
const LIMITS = [limit.rate("tpm", 1, YEAR_MS, { burst: 1000 }), limit.slots("slots", 2)];
const ALL = { tpm: 1000, slots: 2 };

let backend;
let agent;
let client;
let number = 0;

before(async () => {
  backend = await Backend.start();
  agent = await Agent.start(backend.variables);
  client = new Client({ url: agent.url });
});

after(async () => {
  client?.close();
  await agent?.stop();
  await backend?.stop();
});

/** Returns an entity of its own, and its balances. */
function fresh() {
  const entity = `entity-${(number += 1)}`;
  const balances = async () => {
    const { limits } = await client.peek(entity, "api", { limits: LIMITS });
    return Object.fromEntries(limits.map((status) => [status.limit, status.available]));
  };
  return { entity, balances };
}

test("a scope releases after its work, and returns its result", async () => {
  const { entity, balances } = fresh();
  const result = await client.scope(entity, "api", { tpm: 100, slots: 1 }, { limits: LIMITS }, async (grant) => {
    assert.deepEqual(await balances(), { tpm: 900, slots: 1 });
    assert.deepEqual([grant.amount("tpm"), grant.remaining("tpm")], [100, 900]);
    await grant.adjust({ tpm: 40 });
    return "the result";
  });
  assert.equal(result, "the result");
  assert.deepEqual(await balances(), { tpm: 960, slots: 2 });
});

test("a scope rolls back if its work throws", async () => {
  const { entity, balances } = fresh();
  const work = () => {
    throw new RangeError("the work");
  };
  await assert.rejects(client.scope(entity, "api", { tpm: 100, slots: 1 }, { limits: LIMITS }, work), RangeError);
  assert.deepEqual(await balances(), ALL);
});

test("a grant that was ended in its scope is left alone", async () => {
  const { entity, balances } = fresh();
  const grant = await client.scope(entity, "api", { tpm: 100, slots: 1 }, { limits: LIMITS }, async (held) => {
    await held.release({ tpm: 10 });
    return held;
  });
  assert.ok(grant.isEnded);
  assert.deepEqual(await balances(), { tpm: 990, slots: 2 });
  await assert.rejects(grant.adjust({ tpm: 1 }), InvalidRequest);
});

test("the work of a denied scope does not begin", async () => {
  const { entity } = fresh();
  await client.acquire(entity, "api", { tpm: 1000 }, { limits: LIMITS });
  const denied = client.scope(entity, "api", { tpm: 1 }, { limits: LIMITS }, () => assert.fail("it began"));
  await assert.rejects(denied, (error) => {
    assert.ok(error instanceof Denied);
    assert.deepEqual(error.limits, ["tpm"]);
    assert.deepEqual(error.blocking, { limit: "tpm", capacity: 1000, remaining: 0, requested: 1 });
    assert.ok(error.retryAfterMs > 86_400_000);
    assert.ok("retry-after" in error.headers && "ratelimit" in error.headers);
    return true;
  });
});

test("a settlement that fails leaves the result of the work", async () => {
  const { entity } = fresh();
  const warned = once(process, "warning");
  const result = await client.scope(entity, "api", { slots: 1 }, { limits: LIMITS }, async (grant) => {
    const other = client.restore(grant.token);
    await other.release();
    await agent.stop();
    return 5;
  });
  assert.equal(result, 5);
  assert.match((await warned)[0].message, /could not be settled/);
  await agent.restart();
});

test("an acquire that is given up while it waits takes nothing", async () => {
  const { entity } = fresh();
  const held = await client.acquire(entity, "api", { slots: 2 }, { limits: LIMITS });
  const controller = new AbortController();
  const options = { limits: LIMITS, waitMs: 60_000, signal: controller.signal };
  const waiting = client.acquire(entity, "api", { slots: 2 }, options);
  while ((await agent.inFlight()) === 0);
  controller.abort();
  await assert.rejects(waiting, { name: "AbortError" });
  await held.release();
  // Less than the lease of slots that nothing would give back.
  const next = await client.acquire(entity, "api", { slots: 2 }, { limits: LIMITS, waitMs: 30_000 });
  await next.release();
});

test("a release whose wait is given up in any turn gives the slot back", { timeout: 120_000 }, async () => {
  const { entity } = fresh();
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  for (let turns = -1; turns < 25; turns += 1) {
    const controller = new AbortController();
    const held = await client.acquire(entity, "api", { slots: 2 }, { limits: LIMITS, waitMs: 20_000 });
    if (turns < 0) controller.abort();
    const release = held.release(undefined, { signal: controller.signal }).catch((error) => error.name);
    for (let passed = 0; passed < turns; passed += 1) await turn();
    controller.abort();
    const outcome = await release;
    assert.ok(["settled", "AbortError"].includes(outcome), outcome);
  }
  // Less than the lease of slots that nothing would give back.
  await (await client.acquire(entity, "api", { slots: 2 }, { limits: LIMITS, waitMs: 20_000 })).release();
});

test("what is printed names the agent and not the token", async () => {
  const { entity } = fresh();
  const shown = inspect(new Client({ url: agent.url, token: "secret" }));
  assert.equal(shown, `Client { url: '${agent.url}' }`);
  const grant = await client.acquire(entity, "api", { tpm: 5 }, { limits: LIMITS });
  assert.ok(!inspect(grant).includes(grant.token) && inspect(grant).includes("amounts: [ { tpm: 5 } ]"), inspect(grant));
  assert.deepEqual(grant.limits.map(({ limit, kind }) => [limit, kind]), [["slots", "slots"], ["tpm", "rate"]]);
});

test("a slot that is released goes to a request that waits", async () => {
  const { entity } = fresh();
  const held = await client.acquire(entity, "api", { slots: 2 }, { limits: LIMITS });
  const waiting = client.acquire(entity, "api", { slots: 1 }, { limits: LIMITS, waitMs: 60_000 });
  await held.release();
  assert.equal((await waiting).amount("slots"), 1);
});

test("remaining reads one balance", async () => {
  const { entity } = fresh();
  assert.equal(await client.remaining(entity, "api", "tpm", { limits: LIMITS }), 1000);
  assert.equal(await client.remaining(entity, "api", "unknown", { limits: LIMITS }), undefined);
});

test("the calls of the guide print what remains", () => {
  const said = execFileSync(process.execPath, [join(FOLDER, "examples/calls.js")], {
    encoding: "utf8",
    env: { ...process.env, WEIRGATE_AGENT_URL: agent.url },
  });
  assert.equal(said, "HOW MANY? 691\n");
});

async function exampleService(t, variables = {}) {
  const service = spawn(process.execPath, [join(FOLDER, "examples/service.js")], {
    stdio: ["ignore", "pipe", "inherit"],
    env: {
      ...process.env, PORT: "0", WEIRGATE_AGENT_URL: agent.url, API_KEYS: '{"key-a": "ann", "key-b": "bob", "key-c": "cem"}',
      ...variables,
    },
  });
  t.after(async () => {
    service.kill("SIGTERM");
    if (service.exitCode === null) await once(service, "exit");
  });
  const [line] = await once(createInterface(service.stdout), "line");
  const url = `http://127.0.0.1:${/\d+/.exec(line)[0]}`;
  return (headers, path = "/") => fetch(url + path, { headers: { ...headers, connection: "close" } });
}

test("the example serves until its caller's limit", async (t) => {
  const get = await exampleService(t);
  const first = await get({ "x-api-key": "key-a" });
  assert.deepEqual([first.status, await first.json()], [200, { of: "ann" }]);
  assert.match(first.headers.get("ratelimit"), /"requests";r=99/);
  const limits = [limit.perMinute("requests", 100), limit.slots("slots", 10)];
  const used = await client.acquire("bob", "report", { requests: 100 }, { limits });
  assert.equal(used.amount("requests"), 100);
  const denied = await get({ "x-api-key": "key-b" });
  assert.equal(denied.status, 429);
  assert.ok(denied.headers.get("retry-after"));
  assert.deepEqual((await denied.json())["violated-policies"], ["requests"]);
  // What a client says of its tenant or its cost changes nothing.
  const said = { "x-api-key": "key-b", "x-tenant": "ann", "x-estimate": "-1", "x-cost": "0" };
  assert.equal((await get(said)).status, 429);
});

test("the example serves no client without a key of a tenant", async (t) => {
  const get = await exampleService(t);
  for (const key of ["", "made up", "ann", "KEY-A", "key-a, key-a", "key-a,key-b", "__proto__", "constructor", "undefined", "[object Object]"]) {
    assert.equal((await get({ "x-api-key": key })).status, 401, key);
  }
  assert.equal((await get({})).status, 401);
  assert.equal((await get({ "x-api-keys": "key-a" })).status, 401);
});

test("a request of the example that fails counts", async (t) => {
  const get = await exampleService(t);
  const answers = [];
  for (let round = 0; round < 3; round += 1) answers.push(await get({ "x-api-key": "key-c" }, "/broken"));
  assert.deepEqual(answers.map(({ status }) => status), [500, 500, 500]);
  assert.match(answers[2].headers.get("ratelimit"), /"requests";r=97/);
  // The last slot comes back right after its response.
  const limits = [limit.perMinute("requests", 100), limit.slots("slots", 10)];
  const all = await client.acquire("cem", "report", { slots: 10 }, { limits, waitMs: 10_000 });
  await all.rollBack();
});

test("the example serves nothing without a decision", async (t) => {
  const guarded = await Agent.start({ ...backend.variables, WEIRGATE_AGENT_TOKEN: "another-token-of-others" });
  t.after(() => guarded.stop());
  const missing = await Agent.start({ ...backend.variables, WEIRGATE_TABLE: "missing" });
  t.after(() => missing.stop());
  for (const url of ["http://127.0.0.1:1", guarded.url, missing.url]) {
    const get = await exampleService(t, { WEIRGATE_AGENT_URL: url });
    assert.equal((await get({ "x-api-key": "key-a" })).status, 503);
  }
});

test("npm installs the folder without a network", (t) => {
  const folder = mkdtempSync(join(tmpdir(), "weirgate-"));
  t.after(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, "package.json"), '{"type": "module"}');
  for (const how of ["--install-links=false", "--install-links=true"]) {
    execFileSync("npm", ["install", "--offline", "--no-audit", "--no-fund", how, FOLDER], { cwd: folder, stdio: "pipe" });
    const code = 'import { Client } from "weirgate"; console.log(typeof new Client().acquire)';
    const node = ["--input-type=module", "-e", code];
    const said = execFileSync(process.execPath, node, { cwd: folder, encoding: "utf8" });
    assert.equal(said, "function\n");
    rmSync(join(folder, "node_modules"), { recursive: true });
  }
});
