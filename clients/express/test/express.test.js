/** The middleware before a real Express and a real agent, as clients use it that want more than their limit. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { rateLimit } from "../src/index.js";
import { Client, limit } from "../../typescript/src/index.js";
import { Agent, Backend, withoutDatabase } from "../../typescript/test/stack.js";

const express = createRequire(new URL("../../typescript/check/package.json", import.meta.url))("express");
const FOLDERS = ["../../typescript/", "../"].map((path) => fileURLToPath(new URL(path, import.meta.url)));
const DAY_MS = 86_400_000;
const LIMITS = [limit.rate("requests", 1, DAY_MS, { burst: 2 }), limit.slots("slots", 10)];
const LEASED = { grant: "g1", lease: { expires_at_ms: 1_900_000_000_000 }, amounts: [{}], limits: [], would_deny: null, degraded: null };
const KEYS = { "key-a": "ann", "key-b": "bob" };
let backend;
let agent;
let number = 0;

before(async () => {
  backend = await Backend.start();
  agent = await Agent.start(backend.variables);
});

after(async () => {
  await agent?.stop();
  await backend?.stop();
});

/** Serves an application behind the middleware, and returns what asks it. */
async function serving(t, options = {}, url = agent.url, ofClient = {}) {
  const client = new Client({ url, retries: 0, ...ofClient });
  const app = express();
  const served = { passed: 0, tenant: `t${(number += 1)}`, client };
  app.use((request, _, next) => {
    // Authentication, which comes first.
    request.tenant = KEYS[request.headers["x-api-key"]];
    next();
  });
  const key = (request) => request.tenant && `${served.tenant}-${request.tenant}`;
  app.use((request, response, next) => {
    if (request.path === "/answered") served.answered(response);
    next();
  });
  const defaults = { client, resource: "api", key, onUnavailable: "deny", take: { requests: 1, slots: 1 }, limits: LIMITS };
  app.use(rateLimit({ ...defaults, ...options }));
  app.get("/", (request, response) => {
    served.passed += 1;
    response.json({ of: request.tenant });
  });
  app.get("/broken", () => {
    throw new Error("the application");
  });
  app.get("/used/:tokens", async (request, response) => {
    served.passed += 1;
    await response.locals.grant.adjust({ requests: Number(request.params.tokens) });
    response.end();
  });
  app.get("/stream", (_, response) => {
    served.stream = response;
    served.grant = response.locals.grant;
    response.write("begun");
  });
  app.use((error, request, response, next) => {
    served.failed?.(error);
    response.status(500).end(error.message);
  });
  const server = http.createServer(app);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(async () => {
    server.closeAllConnections();
    server.close();
    await client.close();
  });
  const { port } = server.address();
  served.get = (headers, path = "/") =>
    fetch(`http://127.0.0.1:${port}${path}`, { headers: { ...headers, connection: "close" }, signal: served.signal });
  served.slots = async (expected) => {
    const taken = { slots: expected };
    const options = { limits: LIMITS, waitMs: 20_000 };
    await (await client.acquire(`${served.tenant}-ann`, "api", taken, options)).rollBack();
  };
  return served;
}

/** A promise, and what resolves it. */
function deferred() {
  const found = {};
  found.promise = new Promise((resolve) => (found.resolve = resolve));
  return found;
}

const A = { "x-api-key": "key-a" };
const statuses = async (answers) => (await Promise.all(answers)).map(({ status }) => status);

test("requests of a tenant pass until its limit", async (t) => {
  const { get, slots } = await serving(t);
  const first = await get(A);
  assert.deepEqual([first.status, await first.json()], [200, { of: "ann" }]);
  assert.match(first.headers.get("ratelimit"), /"requests";r=1/);
  assert.equal((await get(A)).status, 200);
  const denied = await get(A);
  assert.equal(denied.status, 429);
  assert.equal(denied.headers.get("content-type"), "application/problem+json");
  assert.ok(Number(denied.headers.get("retry-after")) > 0);
  assert.deepEqual((await denied.json())["violated-policies"], ["requests"]);
  assert.equal((await get({ "x-api-key": "key-b" })).status, 200);
  await slots(10);
});

test("a client that is not authenticated does not pass", async (t) => {
  const served = await serving(t);
  for (const headers of [{}, { "x-api-key": "" }, { "x-api-key": "made up" }, { "x-tenant": "ann" }, { "x-api-keys": "key-a" }, { "x-api-key": "key-a, key-b" }]) {
    const answer = await served.get(headers);
    assert.deepEqual([answer.status, (await answer.json()).detail], [401, "authenticate first"], JSON.stringify(headers));
  }
  assert.equal(served.passed, 0);
});

test("what a client says of its tenant or its cost changes nothing", async (t) => {
  const { get } = await serving(t);
  const costs = ["-1", "0", "abc", "", "1e9", "18446744073709551616"];
  const answers = [];
  for (const cost of costs) answers.push(await get({ ...A, "x-cost": cost, "x-estimate": cost, "x-tenant": "bob", "x-forwarded-for": cost }));
  assert.deepEqual(await statuses(answers), [200, 200, 429, 429, 429, 429]);
});

test("requests that fail count, and a handler can adjust its grant", async (t) => {
  const { get, slots } = await serving(t);
  assert.deepEqual(await statuses([await get(A, "/broken"), await get(A, "/broken"), await get(A)]), [500, 500, 429]);
  await slots(10);
  const other = await serving(t);
  assert.deepEqual(await statuses([await other.get(A, "/used/2"), await other.get(A)]), [200, 429]);
});

test("a slot is held until the response ends, or its client leaves", async (t) => {
  for (const leaves of [false, true]) {
    const served = await serving(t, { take: { slots: 10 } });
    const controller = new AbortController();
    served.signal = controller.signal;
    const answer = await served.get(A, "/stream");
    assert.equal(answer.status, 200);
    served.signal = undefined;
    assert.equal((await served.get(A)).status, 429);
    if (leaves) controller.abort();
    else served.stream.end();
    await served.slots(10);
  }
});

test("a slot is held while a response lasts longer than its lease", async (t) => {
  const served = await serving(t, { take: { slots: 10 }, leaseMs: 3_000 });
  const answer = await served.get(A, "/stream");
  const expires = served.grant.expiresAt.getTime() + 500;
  while (Date.now() < expires) assert.equal((await served.get(A)).status, 429);
  served.stream.end();
  await answer.text();
  await served.slots(10);
});

test("a lease that is lost or cannot be renewed is a warning", async (t) => {
  const gone = { grant: "g2", settlement: "lease_gone", lease: null, amounts: [] };
  for (const [status, body, said] of [[200, gone, "a lease expired"], [500, {}, "a lease was not renewed"]]) {
    const stranger = http.createServer((request, response) => {
      response.writeHead(request.url === "/v1/acquire" ? 200 : status);
      response.end(JSON.stringify(request.url === "/v1/acquire" ? LEASED : body));
    });
    stranger.listen(0, "127.0.0.1");
    await once(stranger, "listening");
    t.after(() => stranger.close());
    const served = await serving(t, { leaseMs: 30 }, `http://127.0.0.1:${stranger.address().port}`);
    const warned = new Promise((resolve) => process.on("warning", ({ message }) => message.includes(said) && resolve()));
    const answer = await served.get(A, "/stream");
    await warned;
    served.stream.end();
    await answer.text();
  }
});

test("a renewal that the end of its response overtakes is no warning", async (t) => {
  const gone = { grant: "g2", settlement: "lease_gone", lease: null, amounts: [] };
  const ended = { grant: null, settlement: "settled", lease: null, amounts: [] };
  const warned = [];
  const warns = ({ message }) => message.startsWith("a lease ") && warned.push(message);
  process.on("warning", warns);
  t.after(() => process.off("warning", warns));
  for (const [status, body] of [[200, gone], [500, {}]]) {
    const [renews, ends, isSettled] = [deferred(), deferred(), deferred()];
    const stranger = http.createServer(async (request, response) => {
      const asked = await new Response(Readable.toWeb(request)).json();
      const answer = (status, body) => response.writeHead(status).end(JSON.stringify(body));
      if (request.url === "/v1/acquire") return answer(200, LEASED);
      if ("renew_ms" in asked) {
        renews.resolve();
        await ends.promise;
        response.on("close", isSettled.resolve);
        return answer(status, body);
      }
      ends.resolve();
      await isSettled.promise;
      setTimeout(answer, 50, 200, ended);
    });
    stranger.listen(0, "127.0.0.1");
    await once(stranger, "listening");
    t.after(() => stranger.close());
    const served = await serving(t, { leaseMs: 30 }, `http://127.0.0.1:${stranger.address().port}`);
    const answer = await served.get(A, "/stream");
    await renews.promise;
    served.stream.end();
    await answer.text();
    while (!served.grant.isEnded) await new Promise(setImmediate);
    assert.deepEqual(warned, [], `${status}`);
  }
});

test("a client that leaves while it waits takes nothing", async (t) => {
  const served = await serving(t, { take: { slots: 10 }, waitMs: 60_000 });
  const held = await served.client.acquire(`${served.tenant}-ann`, "api", { slots: 10 }, { limits: LIMITS });
  const controller = new AbortController();
  served.signal = controller.signal;
  const waiting = served.get(A);
  while ((await agent.inFlight()) === 0);
  controller.abort();
  await assert.rejects(waiting, { name: "AbortError" });
  while ((await agent.inFlight()) > 0);
  await held.release();
  await served.slots(10);
  assert.equal(served.passed, 0);
});

test("a client that leaves before the limits are asked takes nothing", async (t) => {
  // During an authentication before the middleware, within it, and while the agent decides.
  for (const leaves of ["authenticate", "key", "take", "acquire"]) {
    const arrived = deferred();
    const left = deferred();
    const waits = async () => {
      arrived.resolve();
      await left.promise;
    };
    const options = { take: async () => (leaves === "take" && (await waits()), { slots: 10 }) };
    const served = await serving(t, options);
    const { client, tenant } = served;
    let asked = 0;
    const acquire = client.acquire.bind(client);
    client.acquire = async (...request) => {
      asked += 1;
      // Without the signal: a decision that was made already.
      const grant = await acquire(...request.slice(0, 3), { limits: LIMITS });
      if (leaves === "acquire") await waits();
      return grant;
    };
    const key = async () => (leaves === "key" && (await waits()), `${tenant}-ann`);
    const limited = rateLimit({ client, resource: "api", key, onUnavailable: "deny", ...options, limits: LIMITS });
    const passed = [];
    const server = http.createServer(async (request, response) => {
      response.on("close", () => left.resolve());
      if (leaves === "authenticate") await waits();
      await limited(request, response, () => passed.push(request.url));
      response.end();
      done.resolve();
    });
    const done = deferred();
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    t.after(() => server.close());
    const controller = new AbortController();
    const got = fetch(`http://127.0.0.1:${server.address().port}/`, { signal: controller.signal });
    await arrived.promise;
    controller.abort();
    await assert.rejects(got, { name: "AbortError" });
    await done.promise;
    assert.deepEqual([asked, passed], [leaves === "acquire" ? 1 : 0, []], leaves);
    client.acquire = acquire;
    await served.slots(10);
  }
});

test("a request without a cost passes without a limit, and without a key", async (t) => {
  const { get } = await serving(t, { take: (request) => (request.path === "/" ? { requests: 2 } : null) });
  assert.deepEqual(await statuses([await get({}, "/broken"), await get(A), await get(A)]), [500, 200, 429]);
});

test("the policy decides without the agent, and without its database", async (t) => {
  const without = await Agent.start(withoutDatabase);
  t.after(() => without.stop());
  for (const url of ["http://127.0.0.1:1", without.url]) {
    // Whatever the client would do.
    for (const onAgentUnavailable of ["raise", "deny", "allow"]) {
      const policies = [["allow", 200, 2], ["deny", 429, 0]];
      for (const [onUnavailable, status, passed] of policies) {
        const options = { onUnavailable, timeoutMs: 500, take: { requests: 1 } };
        const served = await serving(t, options, url, { onAgentUnavailable });
        // A handler that settles does so without the agent, too.
        for (const path of ["/", "/used/2"]) {
          const answer = await served.get(A, path);
          assert.deepEqual([answer.status, answer.headers.get("x-ratelimit-degraded")], [status, "true"], `${url} ${path}`);
          assert.equal(answer.headers.has("retry-after"), onUnavailable === "deny");
          assert.ok(!(await answer.text()).includes("127.0.0.1"));
        }
        assert.equal(served.passed, passed);
        // A client that is not authenticated passes by no policy.
        assert.equal((await served.get({})).status, 401);
      }
    }
  }
});

test("nothing passes if only a repair brings a decision", async (t) => {
  const missing = await Agent.start({ ...backend.variables, WEIRGATE_TABLE: "missing" });
  t.after(() => missing.stop());
  const guarded = await Agent.start({ ...backend.variables, WEIRGATE_AGENT_TOKEN: "another-token-of-others" });
  t.after(() => guarded.stop());
  const strangers = [];
  for (const status of [200, 401, 403, 404]) {
    const stranger = http.createServer((_, response) => response.writeHead(status).end("{}")).listen(0, "127.0.0.1");
    await once(stranger, "listening");
    t.after(() => stranger.close());
    strangers.push([{}, `http://127.0.0.1:${stranger.address().port}`]);
  }
  process.on("warning", () => {});
  for (const [options, url] of [
    [{}, missing.url],
    [{}, guarded.url],
    ...strangers,
    [{ limits: undefined, resource: "nowhere" }, agent.url],
    [{ take: { wpm: 1 } }, agent.url],
    [{ take: () => 5 }, agent.url],
    [{ key: () => 5 }, agent.url],
  ]) {
    const served = await serving(t, { onUnavailable: "allow", ...options }, url);
    const answer = await served.get(A);
    assert.deepEqual([answer.status, served.passed], [500, 0], url);
    assert.ok(!(await answer.text()).includes("127.0.0.1"));
  }
  const throwing = await serving(t, { key: () => { throw new Error("no session"); } });
  assert.deepEqual([(await throwing.get(A)).status, throwing.passed], [500, 0]);
});

test("what is no name is answered 400, and the agent refuses the same", async (t) => {
  const names = ["user+x@y.com", "a b", "a/b", "..", "a\n", "ü", "aü", "\u0661", "a\u0661", "a".repeat(256), "a".repeat(257), "\ud800", "😀"];
  for (let code = 0; code < 128; code += 1) names.push(String.fromCharCode(code), `a${String.fromCharCode(code)}`);
  const served = await serving(t, { key: () => served.name, onUnavailable: "allow", take: { requests: 1 }, limits: [limit.perDay("requests", 1_000)] });
  for (const name of names) {
    served.name = name;
    const asked = served.client.peek(name, "api", { limits: [limit.perDay("requests", 1_000)] });
    const expected = await asked.then(() => 200, (error) => (assert.equal(error.name, "InvalidRequest"), 400));
    const answer = await served.get(A);
    const text = await answer.text();
    assert.equal(answer.status, expected, JSON.stringify(name));
    if (expected === 400) assert.ok(/must be 1 to 256 of .* got \d+ characters that are not/.test(text), text);
  }
  assert.equal(served.passed, 62 + 67 + 1);
});

test("a cost may be awaited, and is amounts or null", async (t) => {
  const later = await serving(t, { take: async (request) => (request.path === "/" ? { requests: 2 } : null) });
  assert.deepEqual(await statuses([await later.get({}, "/broken"), await later.get(A), await later.get(A)]), [500, 200, 429]);
  for (const nothing of [undefined, false, 0, ""]) {
    for (const take of [() => nothing, async () => nothing]) {
      const served = await serving(t, { take });
      const answer = await served.get(A);
      assert.deepEqual([answer.status, served.passed], [500, 0]);
      assert.match(await answer.text(), /take must return amounts, or null/);
    }
  }
});

test("a request that was answered while it waited takes nothing", async (t) => {
  const errors = [];
  // Such as by a middleware that ends slow requests.
  for (const slow of ["write", "end"]) {
    for (const slots of [10, 11]) {
      const served = await serving(t, { take: { slots }, waitMs: 60_000 });
      served.failed = (error) => errors.push(error);
      const held = await served.client.acquire(`${served.tenant}-ann`, "api", { slots: 10 }, { limits: LIMITS });
      const controller = new AbortController();
      served.signal = controller.signal;
      served.answered = (response) => response.status(503)[slow]("slow");
      assert.equal((await served.get(A, "/answered")).status, 503);
      while (slots === 10 && slow === "write" && (await agent.inFlight()) === 0);
      await held.release();
      while ((await agent.inFlight()) > 0);
      await served.slots(10);
      controller.abort();
      assert.equal(served.passed, 0);
    }
  }
  assert.deepEqual(errors, []);
});

test("what is not chosen is refused at the start", () => {
  const client = new Client({ url: "http://127.0.0.1:1" });
  const options = { client, resource: "api", key: () => "a", onUnavailable: "deny" };
  for (const [name, value] of [["client", undefined], ["key", undefined], ["key", "x-api-key"], ["onUnavailable", undefined], ["onUnavailable", "alow"], ["onUnavailible", "deny"]]) {
    assert.throws(() => rateLimit({ ...options, [name]: value }), new RegExp(name), `${name} ${value}`);
  }
});

test("npm installs the folders without a network", (t) => {
  const folder = mkdtempSync(join(tmpdir(), "weirgate-"));
  t.after(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, "package.json"), '{"type": "module"}');
  const install = ["install", "--offline", "--no-audit", "--no-fund", "--install-links=true", ...FOLDERS];
  execFileSync("npm", install, { cwd: folder, stdio: "pipe" });
  const code = 'import { Client } from "weirgate"; import { rateLimit } from "weirgate-express"; console.log(typeof rateLimit, typeof Client)';
  const said = execFileSync(process.execPath, ["--input-type=module", "-e", code], { cwd: folder, encoding: "utf8" });
  assert.equal(said, "function function\n");
});
