/** Every answer of a server that is no agent ends in an error of this package, or in a value that can be used. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import zlib from "node:zlib";

import { Client, InvalidRequest, Unavailable, WeirgateError } from "weirgate";

import { serving } from "./served.js";

const SECRET = "the-secret-token";
/** As a buffer shows it. */
const SECRET_BYTES = inspect(Buffer.from(SECRET)).slice("<Buffer ".length, -1);
const LIMIT = {
  entity: "a", resource: "api", limit: "rpm", mode: "enforced", capacity_tokens: 10, refill_tokens: 10,
  refill_period_ms: 60_000, available_tokens: 9.5, requested_tokens: 1, is_requested: true, retry_after_ms: null,
};
const GRANTED = {
  grant: "g1", lease: { expires_at_ms: 1_900_000_000_000 }, amounts: [{ rpm: 1 }], limits: [LIMIT],
  would_deny: { retry_after_ms: 5, limits: [{ ...LIMIT, requested_tokens: 50 }], degraded: null },
  degraded: { reason: "no answer" }, starts_at_ms: 1_900_000_000_000, missing_plan: "pro",
};
const SETTLED = { grant: "g2", settlement: "settled", lease: { expires_at_ms: 5 }, amounts: [{ rpm: 0.5 }] };
const REPORTED = { paused_until_ms: 1_900_000_000_000 };
const SAID = { ...SETTLED, ...REPORTED };
const QUOTA_STATUS = {
  ...LIMIT, limit: "tpm", refill_tokens: 0, refill_period_ms: 0, window: { every: "month", day: 15 },
  resets_at_ms: 1_797_321_600_000, resets_in_ms: 5, paused_ms: 7,
};
const BALANCES = { status: "enforced", limits: [LIMIT, QUOTA_STATUS], retry_after_ms: 12 };
const USED = {
  usage: { tokens: { rpm: 6.5, tpm: "9300000000000000000" }, acquires: 2 }, state: "interim", complete_until_ms: 5,
};
const UNREADABLE = [{ entity: null, resource: null, shard: null, pk: "a", sk: "b", error: "wrong: correct it" }];
const TOTAL = { ...USED, unreadable: UNREADABLE };
const PAGE = {
  items: [{ entity: "a", resource: "api", start_ms: 0, end_ms: 3_600_000, ...USED }], next: "p2", unreadable: UNREADABLE,
};
const LEVEL = { level: "entity_resource", entity: "a", resource: "api" };
const RATE = { name: "rpm", capacity_tokens: 10, refill_tokens: 5, refill_period_ms: 60_000, mode: "enforced" };
const QUOTA = {
  text: "tpm=quota:10/month,day=15,mode=soft", name: "tpm", quota_tokens: 10, window: { every: "month", day: 15 },
  mode: "soft",
};
const SCHEDULED = {
  ...RATE, text: "rpm=5/minute,burst=10,schedule=0 8 * * * for 1h scale 2/1",
  schedule: [{ cron: "0 8 * * *", for: "1h", scale: "2/1" }],
};
const CLASSES = {
  ...RATE, text: "rpm=5/minute,burst=10,class=batch:10%:30%,class=night:5%",
  classes: { batch: { at_least_percent: 10, leaves_percent: 30 }, night: { at_least_percent: 5, leaves_percent: 0 } },
};
const CONFIG = {
  limits: [RATE, { name: "slots", slots: 2, mode: "soft" }, QUOTA, SCHEDULED, CLASSES], status: "enforced",
  is_shadow: false, class: "batch",
};
const EFFECTIVE = {
  buckets: [{ entity: "a", level: LEVEL, status: "enforced", limits: CONFIG.limits }],
  levels: [
    { level: LEVEL, config: CONFIG, is_from_file: false },
    { level: { level: "plan_resource", plan: "pro", resource: "api" }, config: null, is_from_file: false },
    { level: { level: "plan", plan: "pro" }, config: null, is_from_file: false },
  ],
  missing_plan: "pro",
};
const CHANGED = { changed: true, before: CONFIG, after: CONFIG };
const PROBLEM = {
  type: "about:blank", title: "Denied", status: 429, detail: "too few", applied: "no", retry: false, grant: "g3", paused: true,
  retry_after_ms: 1_500, starts_in_ms: 2_500, "violated-policies": ["rpm"], retry_after: 2, missing_plan: "pro",
  blocking: { policy: "rpm", quota: 10, remaining: 0, requested: 1 },
};
const WRONG = [
  "null", "true", '"x"', '""', "-1", "0", "1.5", "[]", "{}", "[null]", '{"a": null}', "1e999", "NaN", "-Infinity",
  "1".repeat(400), "1".repeat(5_000), "[".repeat(3_000) + "]".repeat(3_000), '{"a":'.repeat(3_000) + "1" + "}".repeat(3_000),
  '"\\ud800"', "1e300", "9".repeat(25), '{"__proto__": {"a": 1}}', undefined,
];

const head = (status, length, fields = "") => `HTTP/1.1 ${status} X\r\ncontent-length: ${length}\r\n${fields}\r\n`;

function whole(status, body, fields) {
  const data = Buffer.from(body);
  return Buffer.concat([Buffer.from(head(status, data.length, fields)), data]);
}

/** Returns texts of a JSON value with one part replaced by each wrong text, or left out. */
function* mutations(value) {
  const paths = [];
  const walk = (part, path) => {
    paths.push(path);
    if (typeof part === "object" && part !== null) {
      for (const [key, inner] of Object.entries(part)) walk(inner, [...path, key]);
    }
  };
  walk(value, []);
  for (const path of paths) {
    for (const wrong of WRONG) {
      if (path.length === 0) {
        if (wrong !== undefined) yield wrong;
        continue;
      }
      const changed = structuredClone(value);
      const parent = path.slice(0, -1).reduce((part, key) => part[key], changed);
      if (wrong !== undefined) parent[path.at(-1)] = "@@";
      else if (Array.isArray(parent)) parent.splice(path.at(-1), 1);
      else delete parent[path.at(-1)];
      yield JSON.stringify(changed).replace('"@@"', () => wrong);
    }
  }
}

const codeUnits = (token) =>
  `"${Array.from(token, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`).join("")}"`;
/** What a server that repeats a token writes into JSON: by the name of the encoding. */
const ENCODINGS = {
  JSON: JSON.stringify,
  "JSON with a slash escaped": (token) => JSON.stringify(token).replaceAll("/", "\\/"),
  "code units": codeUnits,
  "code units in capitals": (token) => codeUnits(token).replace(/[0-9a-f]{4}/g, (hex) => hex.toUpperCase()),
  "JSON in JSON": (token) => JSON.stringify(JSON.stringify({ detail: token })),
  "JSON in JSON in JSON": (token) => JSON.stringify(JSON.stringify({ detail: JSON.stringify({ detail: token }) })),
  "code units in JSON": (token) => JSON.stringify(codeUnits(token)),
  "a URL": (token) => JSON.stringify(encodeURIComponent(token)),
  "a URL in lowercase": (token) => JSON.stringify(encodeURIComponent(token).toLowerCase()),
  capitals: (token) => JSON.stringify(token.toUpperCase()),
};
const TOKENS = [
  SECRET, "hunter2hunter2", 'sec"ret\\tail', "a/b+c=d%e&f<g>", "two words", 'q\\\\\\"q\\', "u005c%41u0041-%5c\\u0041", "a$&b$1.*c",
];

/** Yields every text of a value or an error, and of its parts. */
function* shown(found) {
  if (typeof found === "string") yield found;
  else if (found instanceof Error) yield* shown([found.message, found.stack, { ...found }, found.cause]);
  else if (Array.isArray(found)) for (const part of found) yield* shown(part);
  else if (found?.headers) yield* shown({ ...found.headers });
  if (typeof found === "object" && found !== null && !Array.isArray(found)) {
    for (const [name, part] of Object.entries(found)) yield* shown([name, part]);
  }
}

function assertHidden(found, repeated, about) {
  for (const text of shown(found)) {
    assert.ok(!text.toLowerCase().includes(repeated.toLowerCase()), `${about}: ${text} has ${repeated}`);
  }
}

/** Reads all that a value or an error has. */
function use(found) {
  const text = inspect(found, { depth: 10, showHidden: true });
  if (found === null || found instanceof Date) return [found?.toISOString()];
  if (found instanceof WeirgateError) {
    assert.ok(!text.includes(SECRET) && !text.includes(SECRET_BYTES) && !found.stack.includes(SECRET), text);
    found.missingPlan?.concat();
    return [found.limits, found.blocking, found.retryAfterMs, found.startsInMs, found.headers, found.applied, found.grant].map(String);
  }
  if (found.unreadable) {
    const rows = found.rows ?? [found];
    return [found.unreadable.join(), ...rows.map((row) => [row.tokens.rpm, row.completeUntil.toISOString(), row.state])];
  }
  if (found.buckets) {
    const limits = [...found.buckets, ...found.levels.map(({ config }) => config)].flatMap((of) => of?.limits ?? []);
    found.missingPlan?.concat();
    return [limits.map(({ name, capacity, refill, periodMs, mode }) => [name, capacity + refill + periodMs, mode]).join()];
  }
  if (found.isChanged !== undefined) return [found.before?.limits.join(), found.after?.status, found.isChanged];
  if (typeof found === "string" || "status" in found) return String(found.limits);
  if (found.token === "g1") assert.ok(!text.includes("g1"), text);
  found.startsAt?.toISOString();
  found.missingPlan?.concat();
  return [found.amount("rpm"), found.remaining("rpm"), found.wouldDeny, found.degraded, found.headers, found.expiresAt];
}

const CALLS = {
  acquire: (client) => client.acquire("a", "api", { rpm: 1 }),
  settle: (client) => client.restore("g").adjust({ rpm: 1 }),
  vendorSaid: (client) => client.restore("g").vendorSaid({ status: 429 }),
  reportVendor: (client) => client.reportVendor("a", "api", { status: 429 }),
  peek: (client) => client.peek("a", "api"),
  usage: (client) => client.usage({ entity: "a", start: new Date(0), end: new Date(86_400_000) }),
  usageRows: (client) => client.usageRows({ entity: "a", start: new Date(0), end: new Date(86_400_000) }),
  limits: (client) => client.limits("a", "api"),
  setLimits: (client) => client.setLimits({ resource: "api", limits: ["rpm=5/minute"] }),
};

/** Returns what a call answers: a value, or an error of the package. */
async function answered(client, call) {
  try {
    return await CALLS[call](client);
  } catch (error) {
    assert.ok(error instanceof WeirgateError, inspect(error));
    return error;
  }
}

function clientOf(t, { url }, options = {}) {
  const client = new Client({ url, token: SECRET, retries: 0, ...options });
  t.after(() => client.close());
  return client;
}

async function checkWhole(t, call, answers, isError = false) {
  let current;
  const served = await serving(t, (socket) => socket.write(current));
  const client = clientOf(t, served);
  for (current of answers) {
    const found = await answered(client, call);
    use(found);
    if (isError) assert.ok(found instanceof WeirgateError);
  }
}

const SUCCESSES = {
  acquire: GRANTED, settle: SETTLED, vendorSaid: SAID, reportVendor: REPORTED, peek: BALANCES, usage: TOTAL, usageRows: PAGE,
  limits: EFFECTIVE, setLimits: CHANGED,
};

for (const [call, value] of Object.entries(SUCCESSES)) {
  test(`each part of a success of ${call}, of each wrong type`, { timeout: 60_000 }, async (t) => {
    await checkWhole(t, call, [whole(200, JSON.stringify(value)), ...[...mutations(value)].map((text) => whole(200, text))]);
  });
}

test("limits in force have the levels of the plan, and the plan that lacks limits", async (t) => {
  let current = EFFECTIVE;
  const served = await serving(t, (socket) => socket.write(whole(200, JSON.stringify(current))));
  const client = clientOf(t, served);
  const { levels, missingPlan } = await client.limits("a", "api");
  assert.deepEqual(levels.map(({ level }) => level), [
    { kind: "entity_resource", entity: "a", plan: null, resource: "api" },
    { kind: "plan_resource", entity: null, plan: "pro", resource: "api" },
    { kind: "plan", entity: null, plan: "pro", resource: null },
  ]);
  assert.equal(missingPlan, "pro");
  current = { ...EFFECTIVE, missing_plan: undefined };
  assert.equal((await client.limits("a", "api")).missingPlan, null);
});

test("each part of a refusal, of each wrong type", { timeout: 60_000 }, async (t) => {
  const texts = [...mutations(PROBLEM)];
  for (const status of [400, 401, 403, 408, 413, 429, 500, 503]) {
    await checkWhole(t, "acquire", texts.map((text) => whole(status, text)), true);
  }
  await checkWhole(t, "settle", texts.map((text) => whole(503, text)), true);
});

test("each status, with and without a body that fits", { timeout: 60_000 }, async (t) => {
  let current;
  const served = await serving(t, (socket) => socket.end(current));
  const client = clientOf(t, served);
  for (let status = 100; status < 600; status += 1) {
    for (const body of [JSON.stringify(GRANTED), "", `{"detail": "${SECRET}"}`]) {
      current = whole(status, body, "connection: close\r\n");
      use(await answered(client, "acquire"));
    }
  }
});

test("framings that are wrong", { timeout: 60_000 }, async (t) => {
  const body = Buffer.from(JSON.stringify(GRANTED));
  const size = body.length;
  const start = "HTTP/1.1 200 OK\r\n";
  const chunked = `${size.toString(16)}\r\n${body}\r\n0\r\n\r\n`;
  const framings = {
    both: `${start}transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n${chunked}`,
    "chunked garbage": `${start}transfer-encoding: chunked\r\n\r\nzz\r\n${body}`,
    "5,000 digits": `${start}content-length: ${"9".repeat(5_000)}\r\n\r\n${body}`,
    "20 digits": `${start}content-length: ${"9".repeat(20)}\r\n\r\n${body}`,
    negative: `${start}content-length: -5\r\n\r\n${body}`,
    signed: `${start}content-length: +${size}\r\n\r\n${body}`,
    "two lengths": `${start}content-length: 5\r\ncontent-length: ${size}\r\n\r\n${body}`,
    "short body": `${head(200, size + 5)}${body}`,
    "empty head": "\r\n\r\n",
    "half a head": "HTTP/1.1 200 OK\r\ncontent-le",
    nothing: "",
    "no status": "HTTP/1.1 \r\n\r\n",
    "two digits": "HTTP/1.1 20 OK\r\ncontent-length: 0\r\n\r\n",
    "HTTP/2": "HTTP/2 200\r\ncontent-length: 0\r\n\r\n",
    "HTTP/0.9": body,
    "another protocol": "SSH-2.0-server\r\n\r\n",
    frames: Buffer.from("000012040000000000".repeat(50), "hex"),
    "a line without a colon": `${start}nothing\r\ncontent-length: 0\r\n\r\n`,
    "a zero in a value": `${start}ratelimit: a\0\r\ncontent-length: ${size}\r\n\r\n${body}`,
    "a long line": `${start}a: ${"b".repeat(100_000)}\r\ncontent-length: 0\r\n\r\n`,
    "many lines": `${start}${"a: b\r\n".repeat(20_000)}content-length: 0\r\n\r\n`,
    "many interim answers": Buffer.concat([Buffer.from("HTTP/1.1 103 X\r\n\r\n".repeat(20_000)), whole(200, body)]),
    switching: "HTTP/1.1 101 X\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "switching without a field": "HTTP/1.1 101 X\r\n\r\n",
    "switching with a body": Buffer.concat([Buffer.from("HTTP/1.1 101 X\r\nupgrade: a\r\nconnection: upgrade\r\n\r\n"), whole(200, body)]),
    compressed: whole(200, zlib.deflateSync(body), "content-encoding: deflate\r\n"),
    "no UTF-8": whole(200, Buffer.from(String(body).replace("g1", "\xff\xfe"), "latin1")),
    "UTF-16": whole(200, Buffer.from(String(body), "utf16le")),
    "a redirect": whole(302, "", `location: http://${SECRET}/\r\n`),
    "a redirect to itself": whole(307, "", "location: /v1/acquire\r\n"),
    "duplicate fields": whole(200, `${String(body).slice(0, -1)}, "grant": 5}`),
    "two values": whole(200, `${body}${body}`),
    "the secret as a status": `HTTP/1.1 ${SECRET}\r\n\r\n`,
    "the secret as a field": `HTTP/1.1 200 X\r\n${SECRET}\r\n\r\n`,
    "9 MB": whole(200, " ".repeat(9_000_000) + body),
  };
  let current;
  const served = await serving(t, (socket) => socket.end(current));
  const client = clientOf(t, served);
  for (const [name, data] of Object.entries(framings)) {
    current = data;
    for (const call of Object.keys(CALLS)) {
      const found = await answered(client, call);
      assert.ok(found instanceof WeirgateError, `${name}: ${inspect(found)}`);
      use(found);
    }
  }
});

test("an answer to nothing is not read as the next one", { timeout: 60_000 }, async (t) => {
  const second = JSON.stringify({ ...GRANTED, grant: "stale" });
  const served = await serving(t, (socket) => {
    socket.write(whole(200, JSON.stringify(GRANTED)));
    setImmediate(() => socket.write(whole(200, second)));
  });
  const client = clientOf(t, served);
  for (let round = 0; round < 50; round += 1) {
    const found = await answered(client, "acquire");
    if (!(found instanceof WeirgateError)) assert.equal(found.token, "g1");
  }
});

test("answers that do not end", { timeout: 120_000 }, async (t) => {
  const endless = {
    nothing: ["", ""],
    "half a head": ["HTTP/1.1 200 OK\r\n", ""],
    "a head": ["HTTP/1.1 200 OK\r\na: ", "b".repeat(1_000)],
    "interim answers": ["", "HTTP/1.1 100 Continue\r\n\r\n".repeat(50)],
    "one interim answer": ["HTTP/1.1 102 X\r\n\r\n", ""],
    "a body byte for byte": [head(200, 8_000_000), " "],
    "half a body": [`${head(200, 500)}{`, ""],
    "a long body": [head(200, 1e9), " ".repeat(60_000)],
    chunks: ["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "1\r\n \r\n".repeat(1_000)],
    "a body without a length": ["HTTP/1.1 200 OK\r\n\r\n", " ".repeat(60_000)],
    "after switching": ["HTTP/1.1 101 X\r\nupgrade: a\r\nconnection: upgrade\r\n\r\n", "x"],
  };
  for (const [name, [begin, again]] of Object.entries(endless)) {
    const served = await serving(t, (socket) => {
      socket.write(begin);
      const more = () => {
        if (again && !socket.destroyed) socket.write(again, () => setImmediate(more));
      };
      more();
    });
    const client = clientOf(t, served, { answerTimeoutMs: 200 });
    for (const call of ["acquire", "peek"]) {
      const found = await answered(client, call);
      assert.ok(found instanceof Unavailable, `${name}: ${inspect(found)}`);
      use(found);
    }
    served.sockets.forEach((socket) => socket.destroy());
  }
});

test("a secret in any encoding is in no part of an error", { timeout: 60_000 }, async (t) => {
  let current;
  const served = await serving(t, (socket) => socket.write(current));
  for (const token of TOKENS) {
    const client = clientOf(t, served, { token });
    for (const [encoding, encode] of Object.entries(ENCODINGS)) {
      const problem = {
        ...PROBLEM, detail: "@", title: "bad @", grant: "@", "violated-policies": ["@", "a @@ b"],
        blocking: { ...PROBLEM.blocking, policy: "@", "@": [["@"], { "@": { "a @": "@" } }] }, "@": 1,
      };
      const body = JSON.stringify(problem).replaceAll("@", () => encode(token).slice(1, -1));
      for (const status of [400, 401, 403, 413, 429, 500, 503]) {
        current = whole(status, body);
        const found = await answered(client, "acquire");
        assert.ok(found instanceof WeirgateError);
        assertHidden(found, JSON.parse(encode(token)), `${encoding} of ${token}, ${status}`);
        if (status === 429) assert.equal(found.retryAfterMs, 1_500);
      }
    }
  }
});

test("a secret is in no field that is passed on", { timeout: 60_000 }, async (t) => {
  let current;
  const served = await serving(t, (socket) => socket.write(current));
  for (const token of TOKENS) {
    const client = clientOf(t, served, { token });
    for (const encode of [String, (text) => text.toUpperCase(), encodeURIComponent, JSON.stringify]) {
      const repeated = encode(token);
      let fields = `retry-after: ${repeated}\r\nratelimit: a;${repeated}\r\nx-ratelimit-a: ${repeated}, b\r\n`;
      if (encode === String && /^[a-z0-9-]+$/.test(token)) fields += `ratelimit-${token}: 5\r\n`;
      for (const [call, status, value] of [["acquire", 200, GRANTED], ["peek", 200, BALANCES], ["acquire", 429, PROBLEM]]) {
        current = whole(status, JSON.stringify(value), fields);
        const found = await answered(client, call);
        assert.ok("retry-after" in found.headers);
        assertHidden(found, repeated, `${call} with ${status}`);
      }
    }
  }
});

test("every text of an error is one of UTF-8", async (t) => {
  const lone = "a \ud800 b \udc00\ud800";
  const body = JSON.stringify({ ...PROBLEM, detail: lone, [lone]: [lone], grant: lone, title: "whole \u{1f600}" });
  for (const token of [SECRET, ""]) {
    for (const status of [400, 401, 429, 500]) {
      const served = await serving(t, (socket) => socket.write(whole(status, body)));
      const found = await answered(clientOf(t, served, { token }), "acquire");
      assert.ok(found.message.includes("a \ufffd b \ufffd\ufffd"));
      for (const text of shown(found)) assert.equal(Buffer.from(text).toString(), text);
      if (status === 429) assert.equal(found.problem.title, "whole \u{1f600}");
    }
  }
});

test("no secret of a URL is in an error", () => {
  for (const url of [
    "http://user:@@@host:1", "http://@@@host", "https://user:@@@host", "http://host/?token=@@", "http://host/#@@",
    "http://host/@@", "http://user:@@/x@host", "http://user:@@?x@host", "http://host:@@", "http://[::1@@@@", "user:@@@host",
    "ftp://@@:a@host", "http://\u2100@@@host", "http://user:@@@[::1", "http:///@@", "http://host\n/@@",
  ]) {
    assert.throws(() => new Client({ url: url.replace("@@", SECRET) }), (error) => {
      assert.ok(error instanceof InvalidRequest);
      assert.ok(!inspect(error).includes(SECRET), inspect(error));
      return true;
    });
  }
});

test("a token that a field cannot carry is refused, and not shown", async (t) => {
  const served = await serving(t, (socket) => socket.end());
  for (const token of [`${SECRET}\r\na: b`, `${SECRET}\0`, `${SECRET}ü`, ` ${SECRET}`, `${SECRET}\n`]) {
    assert.throws(() => clientOf(t, served, { token }), (error) => {
      use(error);
      return error instanceof InvalidRequest;
    });
  }
  await assert.rejects(async () => new Client({ token: 5 }), InvalidRequest);
  assert.equal(served.requests.length, 0);
});

test("names and paths that nothing can connect to are unavailable", { timeout: 60_000 }, async (t) => {
  for (const url of [`unix:/${"x".repeat(500)}`, "unix:/no/agent.sock", `http://${"a".repeat(70)}`, "http://a..b", "http://[::ffff:1.2.3]:1"]) {
    const found = await answered(clientOf(t, { url }, { answerTimeoutMs: 5_000 }), "acquire");
    assert.ok(found instanceof Unavailable, inspect(found));
    assert.equal(found.applied, "no");
  }
});
