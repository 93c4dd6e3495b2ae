/** What is refused before anything is sent, by the table of all clients and by what JavaScript has beside it. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import vm from "node:vm";

import { Client, InvalidRequest, limit } from "weirgate";

import { acquire, acquireAll } from "../src/request.js";
import { GRANTED, answer, serving } from "./served.js";
import { CONTRACT } from "./stack.js";

const TABLE = JSON.parse(readFileSync(`${CONTRACT}client/checks.json`, "utf8"));
const SPECIAL = { NaN: Number.NaN, Infinity: Infinity, "-Infinity": -Infinity, "-0": -0 };
const SETTLED = answer(200, { grant: "g2", settlement: "settled", lease: null, amounts: [{ rpm: 1 }] });

const number = (value) => (typeof value === "string" ? (SPECIAL[value] ?? value) : value);

class Amount {
  valueOf() {
    return 1;
  }
  toJSON() {
    return 1;
  }
}

const NO_NUMBERS = [
  undefined, null, true, false, "1", "", [], [1], {}, { rpm: 1 }, { toJSON: () => 1 }, { valueOf: () => 1 }, 1n, 0n,
  Symbol("a"), () => 1, class {}, new Amount(), new Number(1), new Date(1), new Map([["a", 1]]), new Set([1]), /1/,
  Promise.resolve(1), new Uint8Array([1]), Object.create({ atLeast: 1, atMost: 2 }), Number.NaN,
  new Proxy({}, {}), { atLeast: 1 }, { atLeast: 1, atMost: 2, more: 3 }, { atLeast: "1", atMost: 2 }, globalThis,
];

/** Whether it is one of the kinds that JSON would drop or change. */
async function refused(call, ...mentions) {
  await assert.rejects(async () => call(), (error) => {
    assert.ok(error instanceof InvalidRequest, String(error));
    for (const word of mentions) assert.ok(error.message.includes(word), error.message);
    assert.ok(error.message.length < 300);
    return true;
  });
}

async function served(t) {
  const server = await serving(t, (socket, { path }) => socket.write(path === "/v1/acquire" ? GRANTED : SETTLED));
  const client = new Client({ url: server.url, retries: 0 });
  t.after(() => client.close());
  return { server, client };
}

function callsWith(client, amount) {
  const take = { rpm: amount };
  const calls = {
    take: () => client.acquire("a", "api", take),
    "take of several": () => client.acquireAll([{ entity: "a", resource: "api", take }]),
    "take of a scope": () => client.scope("a", "api", take, () => {}),
    adjust: () => client.restore("g").adjust(take),
    giveBack: () => client.restore("g").giveBack(take),
    release: () => client.restore("g").release(take),
  };
  const whole = {
    atLeast: () => client.acquire("a", "api", { rpm: { atLeast: amount, atMost: 10 ** 12 } }),
    atMost: () => client.acquire("a", "api", { rpm: { atLeast: 0, atMost: amount } }),
    takeMore: () => client.restore("g").takeMore(take),
    need: () => client.peek("a", "api", { need: take }),
  };
  return { calls, whole };
}

test("an amount that JSON would drop or change is not sent", async (t) => {
  const { server, client } = await served(t);
  for (const value of [...TABLE.amounts.refused.map(number), ...NO_NUMBERS]) {
    const { calls, whole } = callsWith(client, value);
    for (const call of Object.values({ ...calls, ...whole })) await refused(call, "rpm");
  }
  for (const value of TABLE.whole_amounts.refused.map(number)) {
    for (const call of Object.values(callsWith(client, value).whole)) await refused(call, "rpm");
  }
  assert.equal(server.requests.length, 0);
});

test("other amounts are sent as they are", async (t) => {
  const { server, client } = await served(t);
  for (const value of TABLE.amounts.kept) {
    for (const call of Object.values(callsWith(client, value).calls)) {
      await call();
      const { take, adjust, give_back: giveBack } = server.requests.findLast(({ body }) => !("end" in body) || "adjust" in body).body;
      assert.deepEqual(take ?? adjust ?? giveBack, { rpm: value });
    }
  }
});

test("what is no plain object of amounts is not sent", async (t) => {
  const { server, client } = await served(t);
  class Take {
    rpm = 1;
  }
  const hidden = Object.defineProperty({ rpm: 1 }, "tpm", { value: 5, enumerable: false });
  const wrong = [
    undefined, null, {}, [], [["rpm", 1]], "rpm", 5, new Map([["rpm", 1]]), new Take(), Object.create({ rpm: 1 }),
    { __proto__: { rpm: 1 } }, { __proto__: { rpm: 1 }, tpm: 1 }, { [Symbol("rpm")]: 1 }, { rpm: 1, [Symbol("x")]: 1 },
    hidden, { "": 1 }, () => 1, Object.assign(() => 1, { rpm: 1 }), new Date(), { rpm: 1, toJSON: () => ({ rpm: 5 }) },
    Object.create(Object.create(null, { rpm: { value: 1, enumerable: true } })),
  ];
  for (const take of wrong) {
    await refused(() => client.acquire("a", "api", take));
    if (take !== undefined) await refused(() => client.restore("g").release(take));
    await refused(() => client.restore("g").adjust(take));
    await refused(() => client.restore("g").takeMore(take));
  }
  assert.equal(server.requests.length, 0);
  for (const take of [Object.assign(Object.create(null), { rpm: 1 }), vm.runInNewContext("({ rpm: 1 })")]) {
    await client.acquire("a", "api", take);
    assert.deepEqual(server.requests.at(-1).body.take, { rpm: 1 });
  }
});

test("what others define on all objects is not sent", async (t) => {
  const { server, client } = await served(t);
  const added = { rpm: 5, waitMs: 1, bypass: true, toJSON: () => ({}), limits: [], bucket: 3 };
  for (const [name, value] of Object.entries(added)) {
    Object.defineProperty(Object.prototype, name, { value, enumerable: true, configurable: true, writable: true });
    try {
      const { body } = acquireAll([{ entity: "a", resource: "api", take: { tpm: 1 } }], {});
      // Not by `deepEqual`, which sees what is inherited, too.
      if (name !== "toJSON") assert.equal(body, '{"entity":"a","resource":"api","take":{"tpm":1}}');
      else assert.ok(body.includes('"take":{"tpm":1}') || body === "{}", body);
    } finally {
      delete Object.prototype[name];
    }
  }
  const take = JSON.parse('{"__proto__": 5, "constructor": 1}');
  await client.acquire("a", "api", take);
  assert.deepEqual(Object.entries(server.requests[0].body.take), Object.entries(take));
  const grant = await client.acquire("a", "api", { rpm: 1 });
  assert.deepEqual([grant.amount("constructor"), grant.amount("__proto__")], [0, 0]);
});

test("times are those of the agent", async (t) => {
  const { server, client } = await served(t);
  const acquireWith = (options) => client.acquire("a", "api", { rpm: 1 }, options);
  for (const [name, { kept, refused: wrong }] of Object.entries(TABLE.times_ms)) {
    for (const value of kept) {
      await acquireWith({ [`${name}Ms`]: value });
      assert.equal(server.requests.at(-1).body[`${name}_ms`], value);
    }
    const sent = server.requests.length;
    for (const value of [...wrong.map(number), ...NO_NUMBERS.slice(1)]) {
      await refused(() => acquireWith({ [`${name}Ms`]: value }), `${name}Ms`);
    }
    assert.equal(server.requests.length, sent);
  }
  for (const value of NO_NUMBERS) await refused(() => client.restore("g").renew(value), "lastsMs");
  for (const value of NO_NUMBERS.slice(1)) {
    await refused(() => new Client({ answerTimeoutMs: value }), "answerTimeoutMs");
    await refused(() => new Client({ retries: value }), "retries");
    await refused(() => new Client({ maxIdle: value }), "maxIdle");
  }
});

test("a client waits for the agent as long as the request waits, and not for a start of which it is told at once", () => {
  const ask = (options) => acquire("a", "api", { rpm: 1 }, options);
  assert.equal(ask({ waitMs: 5, timeoutMs: 2 }).longerMs, 7);
  assert.equal(ask({ queueMs: 30_000, timeoutMs: 2 }).longerMs, 30_002);
  const { body, longerMs } = ask({ queueMs: 30_000, now: true });
  assert.equal(longerMs, 0);
  assert.equal(JSON.parse(body).answer, "now");
  assert.equal(JSON.parse(ask({ queueMs: 1, now: false }).body).answer, undefined);
});

test("options that are unknown, or of another type, are refused", async (t) => {
  const { server, client } = await served(t);
  const acquireWith = (options) => client.acquire("a", "api", { rpm: 1 }, options);
  await refused(() => acquireWith({ wait: 2 }), "waitMs", '"wait"');
  for (const options of [{ waitms: 1 }, { WaitMs: 1 }, { lease: 1 }, { signl: 1 }, { bucket: 0 }, { __proto__: { waitMs: 1 } }]) {
    await refused(() => acquireWith(options), "options");
  }
  await refused(() => client.acquireAll([{ entity: "a", resource: "b", take: { rpm: 1 } }], { limits: [] }), '"limits"');
  await refused(() => client.acquireAll([{ entity: "a", resource: "b", take: { rpm: 1 }, waitMs: 5 }]), '"waitMs"');
  await refused(() => client.peek("a", "b", { needs: {} }), '"needs"');
  await refused(() => client.restore("g").adjust({ rpm: 1 }, { buckets: 1 }), '"buckets"');
  await refused(() => client.restore("g").release(undefined, { bucket: 1 }), '"bucket"');
  await refused(() => new Client({ timeout: 5 }), '"timeout"');
  await refused(() => new Client("http://127.0.0.1:1"), "options");
  for (const value of ["", "alow", "local", "local 0", "local 101", "local 5.5", "Allow", 5, true, []]) {
    await refused(() => acquireWith({ onUnavailable: value }), "onUnavailable");
  }
  for (const value of ["yes", 1, 0, null, []]) {
    await refused(() => acquireWith({ bypass: value }), "bypass");
    await refused(() => acquireWith({ queueMs: 1, now: value }), "now");
    await refused(() => acquireWith({ cascading: value }), "cascading");
    await refused(() => acquireWith({ signal: value }), "signal");
  }
  await refused(() => acquireWith({ now: true }), "now must be left out without queueMs, got true");
  for (const value of [-1, 1.5, true, "1", 2 ** 53, Number.NaN]) {
    await refused(() => acquireWith({ limitsVersion: value }), "limitsVersion");
    await refused(() => client.restore("g").adjust({ rpm: 1 }, { bucket: value }), "bucket");
  }
  for (const value of [undefined, null, "", 5, ["a"], {}]) {
    await refused(() => client.acquire(value, "b", { rpm: 1 }), "entity");
    await refused(() => client.peek("a", value), "resource");
    await refused(() => client.restore(value), "grant");
  }
  for (const value of ["rpm", {}, limit.slots("a", 1), [null], ["rpm"], [{ name: "rpm" }], null]) {
    await refused(() => acquireWith({ limits: value }), "limit");
  }
  for (const value of [undefined, null, [], {}, "a", [null]]) await refused(() => client.acquireAll(value), "bucket");
  for (const level of [{}, { system: false }, { system: true, entity: "a" }, { system: 1 }, { entity: "" }, { resource: 5 }, { level: "a" }]) {
    await refused(() => client.setLimits({ limits: ["rpm=5"], ...level }));
    await refused(() => client.deleteLimits(level));
  }
  const range = { start: new Date(0), end: new Date(86_400_000) };
  for (const call of [
    (of) => client.setLimits({ limits: ["rpm=5"], ...of }),
    (of) => client.deleteLimits(of),
    (of) => client.usage({ ...of, ...range }),
    (of) => client.usageRows({ ...of, ...range }),
  ]) {
    await refused(() => call({ entity: "a", plan: "pro" }), 'plan must be left out beside entity, got "pro"');
    await refused(() => call({ plan: "" }), 'plan must be text that is not empty, got ""');
    await refused(() => call({}), "entity or plan, resource, or both");
  }
  await refused(() => client.deleteLimits({ plan: "pro", system: true }), "system");
  await refused(() => client.setLimits({ entity: "a" }), "sets nothing");
  for (const value of ["", 5, null, ["a"]]) {
    await refused(() => acquireWith({ class: value }), "class");
    await refused(() => client.acquireAll([{ entity: "a", resource: "b", take: { rpm: 1 }, class: value }]), "class");
    await refused(() => client.setLimits({ entity: "a", class: value }), "class");
    await refused(() => acquireWith({ limits: [{ ...limit.perMinute("rpm", 5), classes: value }] }), "classes");
  }
  await refused(() => acquireWith({ limits: [{ ...limit.slots("a", 5), classes: "batch:10%" }] }), "classes");
  await refused(() => client.setLimits());
  const wrong = { limits: ["rpm", ["rpm"], [5]], status: ["off", 1], isShadow: [1, "yes"], replace: [1, null], author: ["", 5] };
  for (const [name, values] of Object.entries(wrong)) {
    for (const value of values) {
      await refused(() => client.setLimits({ limits: ["rpm=5"], entity: "a", [name]: value }), name.replace(/s$/, ""));
    }
  }
  await refused(() => client.limits("a", ""), "resource");
  await refused(() => client.limits("a", "b", { need: {} }), '"need"');
  assert.equal(server.requests.length, 0);
});

async function vendor(t) {
  const settled = { grant: "g2", settlement: "settled", lease: null, amounts: [{ rpm: 1 }], paused_until_ms: 5_000 };
  const server = await serving(t, (socket) => socket.write(answer(200, settled)));
  const client = new Client({ url: server.url, retries: 0 });
  t.after(() => client.close());
  /** Returns what both calls send. */
  const sent = async (response) => {
    assert.deepEqual(await client.reportVendor("a", "api", response), new Date(5_000));
    const grant = client.restore("g");
    assert.deepEqual(await grant.vendorSaid(response), new Date(5_000));
    assert.deepEqual([grant.token, grant.isUncertain], ["g", false]);
    const [reported, settling] = server.requests.slice(-2);
    assert.deepEqual([reported.path, settling.path], ["/v1/report", "/v1/settle"]);
    assert.deepEqual(reported.body, { entity: "a", resource: "api", vendor: settling.body.vendor });
    assert.deepEqual(Object.keys(settling.body), ["grant", "vendor"]);
    return settling.body.vendor;
  };
  return { server, client, sent };
}

test("of a vendor's answer only the fields of limits are sent", async (t) => {
  const { server, client, sent } = await vendor(t);
  for (const { status, headers, sent: expected, mentions } of TABLE.vendor) {
    if (mentions) {
      await refused(() => client.restore("g").vendorSaid({ status, headers }), ...mentions);
      await refused(() => client.reportVendor("a", "api", { status, headers }), ...mentions);
    } else {
      assert.deepEqual(await sent({ status, headers }), { status, headers: expected });
    }
  }
  const many = Object.fromEntries(Array.from({ length: 1_000 }, (_, place) => [`x-ratelimit-${place}`, "9".repeat(200)]));
  const bytes = Object.entries((await sent({ status: 429, headers: many })).headers).map(([name, [text]]) => name.length + text.length);
  const sum = bytes.reduce((one, other) => one + other);
  assert.ok(sum <= 8_192 && bytes.length > 30, `${sum}`);
  const before = server.requests.length;
  for (const given of [undefined, null, 5, "429", [], {}, { status: "429" }, ...NO_NUMBERS.map((status) => ({ status }))]) {
    await refused(() => client.restore("g").vendorSaid(given), "status");
  }
  for (const headers of [5, "a", true, null]) {
    await refused(() => client.restore("g").vendorSaid({ status: 429, headers }), "headers");
  }
  await refused(() => client.reportVendor("", "api", { status: 429 }), "entity");
  await refused(() => client.reportVendor("a", "api", { status: 429 }, { retries: 1 }), '"retries"');
  await refused(() => client.restore("g").vendorSaid({ status: 429 }, { bucket: 1 }), '"bucket"');
  assert.equal(server.requests.length, before);
});

test("a vendor's response is taken as each library has it", async (t) => {
  const { sent } = await vendor(t);
  const headers = { "Retry-After": "1", "Set-Cookie": "secret" };
  const expected = { status: 429, headers: { "retry-after": ["1"] } };
  assert.deepEqual(await sent(new Response("", { status: 429, headers })), expected);
  // As axios and clients of vendors have them.
  class Fields {
    constructor(fields) {
      Object.assign(this, fields);
    }
    [Symbol.iterator]() {
      return Object.entries(this)[Symbol.iterator]();
    }
  }
  assert.deepEqual(await sent({ status: 429, headers: new Fields(headers), data: {} }), expected);
  assert.deepEqual(await sent(Object.assign(new Error("rate limited"), { status: 429, headers: new Headers(headers) })), expected);
  const listed = { "retry-after": ["1", 2, "3"], "retry-after-ms": 5, "x-ratelimit-a": undefined };
  assert.deepEqual(await sent({ status: 429, headers: listed }), { status: 429, headers: { "retry-after": ["1", "3"] } });
  assert.deepEqual(await sent({ status: 503 }), { status: 503, headers: {} });
  const without = new Client({ url: "http://127.0.0.1:1", onAgentUnavailable: "allow", retries: 0 });
  assert.equal(await (await without.acquire("a", "api", { rpm: 1 })).vendorSaid({ status: 429 }), null);
});

test("limits are those of the table of all clients", async () => {
  for (const row of TABLE.limits) {
    const given = Object.fromEntries(Object.entries(row.rate ?? row.slots ?? row.quota).map(([name, value]) => [name, number(value)]));
    const { name = "rpm", refill, period_ms: periodMs, capacity: burst, slots, quota, window, ...options } = given;
    const withBurst = burst === undefined ? options : { ...options, burst };
    const made = () => {
      if ("quota" in row) return limit.quota(name, quota, window, options);
      return "slots" in row ? limit.slots(name, slots, options) : limit.rate(name, refill, periodMs, withBurst);
    };
    if (row.sent) {
      const { body } = acquireAll([{ entity: "a", resource: "b", take: { rpm: 1 }, limits: [made()] }], {});
      const sent = typeof row.sent === "string" ? row.sent : { name: "rpm", mode: "enforced", ...row.sent };
      assert.deepEqual(JSON.parse(body).limits, [sent]);
    } else {
      await refused(made, ...row.mentions);
    }
  }
});

test("what no request can use is refused at construction", async (t) => {
  for (const url of ["", " ", "http://", "127.0.0.1:2774", "http://a b", "unix:", "unix:agent.sock", 5, null, true, new URL("http://a")]) {
    await refused(() => new Client({ url }), "url");
  }
  const url = "http://127.0.0.1:1";
  for (const token of ["a\r\nx: y", "a\n", "a\0", " a", "a ", "ü", "\x7f", " ", 5, null]) {
    await refused(() => new Client({ url, token }), "token");
  }
  const before = { ...process.env };
  t.after(() => Object.assign(process.env, { WEIRGATE_AGENT_URL: "", WEIRGATE_AGENT_TOKEN: "" }, before));
  process.env.WEIRGATE_AGENT_TOKEN = "a\nb";
  await refused(() => new Client({ url }), "WEIRGATE_AGENT_TOKEN");
  // Of the environment an empty one is none.
  Object.assign(process.env, { WEIRGATE_AGENT_URL: "", WEIRGATE_AGENT_TOKEN: "" });
  assert.equal(new Client().url, "http://127.0.0.1:2774");
});

test("no rate becomes another kind of limit", async () => {
  for (const make of [limit.perSecond, limit.perMinute, limit.perHour, limit.perDay]) {
    assert.ok(make("rpm", 1).refill === 1);
    for (const value of [0, -0, -1, 1.5, ...NO_NUMBERS]) {
      await refused(() => make("rpm", value, { burst: 5 }), "rpm", "refill");
      if (value !== undefined) await refused(() => make("rpm", 5, { burst: value }), "rpm", "capacity");
    }
    for (const options of [{ slots: 5 }, { perHour: 5 }, { capacity: 5 }, null, 5, "enforced"]) {
      await refused(() => make("rpm", 5, options), "rpm", "options");
    }
  }
  await refused(() => limit.slots("slots", 5, { burst: 5 }), "burst");
  const whole = { name: "rpm", capacity: 5, refill: 5, periodMs: 1000, mode: "enforced" };
  for (const change of [{ refill: 0 }, { periodMs: 0 }, { refill: -0, periodMs: 0 }, { refill: undefined }, { mode: 5 }, { more: 1 }, { name: "" }]) {
    const limits = [{ ...whole, ...change }];
    await refused(() => acquireAll([{ entity: "a", resource: "b", take: { rpm: 1 }, limits }], {}), "limit");
  }
});

test("random numbers are kept or refused", async () => {
  let seed = 20_261_125;
  const draw = () => ((seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0), seed / 2 ** 32);
  const kinds = [
    () => Math.floor(draw() * 1e13 - 10) / [1, 10, 100, 1000, 10_000][Math.floor(draw() * 5)],
    () => Math.floor((draw() - 0.5) * 2 ** 61),
    () => (draw() - 0.5) * 10 ** Math.floor(draw() * 600 - 310),
  ];
  for (let round = 0; round < 20_000; round += 1) {
    const value = kinds[Math.floor(draw() * 3)]();
    const isKept = value >= 0 && value <= 1e12 && !Object.is(value, -0) && /^\d+(\.\d{1,3})?$/.test(String(value));
    try {
      const { body } = acquireAll([{ entity: "a", resource: "b", take: { rpm: value } }], {});
      assert.ok(isKept, String(value));
      assert.equal(JSON.parse(body).take.rpm, value);
    } catch (error) {
      assert.ok(error instanceof InvalidRequest && !isKept, `${value}: ${error}`);
    }
  }
});
