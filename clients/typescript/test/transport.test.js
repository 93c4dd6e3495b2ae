/** What leaves the client, how often, and what follows from each way in which a connection can fail. */

import assert from "node:assert/strict";
import dns from "node:dns";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import net from "node:net";
import { test } from "node:test";

import { Client, Denied, InvalidRequest, Unauthorized, Unavailable } from "weirgate";

import { Attempts } from "../src/answer.js";
import { endpoint, tokenOf } from "../src/endpoint.js";
import { GRANTED, answer, serving } from "./served.js";
import { CONTRACT } from "./stack.js";

const REFUSED_NOW = { status: 503, detail: "too many requests", applied: "no", retry: true };
const TAKE = ["a", "api", { rpm: 1 }];

function clientOf(t, { url }, options = {}) {
  const client = new Client({ url, ...options });
  t.after(() => client.close());
  return client;
}

test("requests one after the other share a connection", async (t) => {
  const served = await serving(t, (socket) => socket.write(GRANTED));
  const client = clientOf(t, served);
  for (const _ of [1, 2, 3]) assert.equal((await client.acquire(...TAKE)).token, "g1");
  assert.equal(served.connections, 1);
  const [{ path, fields, body }] = served.requests;
  assert.equal(path, "/v1/acquire");
  assert.deepEqual(body, { entity: "a", resource: "api", take: { rpm: 1 } });
  assert.equal(fields["content-type"], "application/json");
  assert.equal(fields["x-weirgate-token"], undefined);
});

test("a Unix socket is an address", async (t) => {
  const served = await serving(t, (socket) => socket.write(GRANTED), { isUnix: true });
  assert.equal((await clientOf(t, served).acquire(...TAKE)).token, "g1");
  assert.equal(served.requests[0].fields.host, "localhost");
});

test("a connection that the agent closed is not written to", async (t) => {
  const served = await serving(t, (socket, _, number) => {
    if (number === 1) socket.end(GRANTED);
    else socket.write(GRANTED);
  });
  const client = clientOf(t, served, { retries: 0 });
  await client.acquire(...TAKE);
  assert.equal((await client.acquire(...TAKE)).token, "g1");
  assert.equal(served.requests.length, 2);
});

test("a connection that the agent closed while this process was busy is not written to", async (t) => {
  // In a process of its own, because this one is busy.
  const { Worker } = await import("node:worker_threads");
  const shared = new Int32Array(new SharedArrayBuffer(4));
  const worker = new Worker(
    `const net = require("node:net"), { workerData: [shared, granted], parentPort } = require("node:worker_threads");
     let connections = 0;
     const server = net.createServer((socket) => {
       const number = ++connections;
       socket.on("error", () => {});
       socket.on("data", () => {
         socket.write(granted);
         if (number === 1) parentPort.once("message", () => socket.end(() => { Atomics.store(shared, 0, 1); Atomics.notify(shared, 0); }));
       });
     });
     server.listen(0, "127.0.0.1", () => parentPort.postMessage(server.address().port));`,
    { eval: true, workerData: [shared, GRANTED] },
  );
  t.after(() => worker.terminate());
  const [port] = await once(worker, "message");
  const client = clientOf(t, { url: `http://127.0.0.1:${port}` }, { retries: 0 });
  await client.acquire(...TAKE);
  worker.postMessage("close");
  Atomics.wait(shared, 0, 0, 10_000);
  const until = performance.now() + 10;
  while (performance.now() < until);
  assert.equal((await client.acquire(...TAKE)).token, "g1");
});

test("a request without an answer is not repeated, and its outcome is unknown", async (t) => {
  const served = await serving(t, (socket) => socket.destroy());
  await assert.rejects(clientOf(t, served).acquire(...TAKE), { name: "Unavailable", applied: "unknown" });
  assert.equal(served.requests.length, 1);
});

test("a read without an answer has changed nothing", async (t) => {
  const served = await serving(t, (socket) => socket.destroy());
  await assert.rejects(clientOf(t, served).peek("a", "api"), { name: "Unavailable", applied: "no" });
  assert.equal(served.requests.length, 1);
});

test("half an answer is none", async (t) => {
  const served = await serving(t, (socket) => socket.end(GRANTED.slice(0, -5)));
  await assert.rejects(clientOf(t, served).acquire(...TAKE), { name: "Unavailable", applied: "unknown" });
  assert.equal(served.requests.length, 1);
});

const CHUNKS = JSON.parse(readFileSync(`${CONTRACT}client/chunks.json`, "utf8"));

function inChunks(text) {
  const body = GRANTED.split("\r\n\r\n")[1];
  const chunks = text.replace("SIZE", body.length.toString(16)).replace("BODY", body);
  return `HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n${chunks}`;
}

test("an answer in chunks is read, and its connection carries the next request", async (t) => {
  let current;
  const served = await serving(t, (socket) => socket.write(current));
  const client = clientOf(t, served);
  for (const text of CHUNKS.read) {
    current = inChunks(text);
    assert.equal((await client.acquire(...TAKE)).token, "g1", text);
  }
  assert.equal(served.connections, 1);
});

for (const text of CHUNKS.refused) {
  test(`an answer with the chunks ${JSON.stringify(text)} is refused`, async (t) => {
    const served = await serving(t, (socket) => socket.end(inChunks(text)));
    await assert.rejects(clientOf(t, served).acquire(...TAKE), { name: "Unavailable", applied: "unknown" });
  });
}

test("a long body and a long answer arrive whole", async (t) => {
  const long = "ü".repeat(1_000_000);
  const served = await serving(t, (socket) => socket.write(answer(429, { detail: long, applied: "no", retry: false, retry_after_ms: 5 })));
  await assert.rejects(clientOf(t, served).acquire("a", "api", { [long]: 1 }), (error) => {
    assert.ok(error instanceof Denied);
    assert.equal(error.message, long);
    return true;
  });
});

test("an answer that is late closes the connection", async (t) => {
  let ended;
  const served = await serving(t, (socket, _, number) => {
    if (number === 1) ended = once(socket, "close");
    else socket.write(GRANTED);
  });
  const client = clientOf(t, served, { answerTimeoutMs: 1_000 });
  await assert.rejects(client.acquire(...TAKE), { name: "Unavailable", applied: "unknown" });
  await ended;
  assert.equal((await clientOf(t, served).acquire(...TAKE)).token, "g1");
});

test("undefined options are none, in every call that takes a grant", async (t) => {
  const settled = answer(200, { grant: null, settlement: "settled", lease: null, amounts: [] });
  const served = await serving(t, (socket, { path }) => socket.write(path === "/v1/acquire" ? GRANTED : settled));
  const client = clientOf(t, served);
  const failing = () => {
    throw new RangeError("the work");
  };
  const sent = {};
  for (const options of [[], [undefined], [{}]]) {
    served.requests.length = 0;
    assert.equal((await client.acquire(...TAKE, ...options)).token, "g1");
    assert.equal((await client.acquireAll([{ entity: "a", resource: "api", take: { rpm: 1 } }], ...options)).token, "g1");
    assert.equal(await client.scope(...TAKE, ...options, (grant) => grant.token), "g1");
    await assert.rejects(client.scope(...TAKE, ...options, failing), RangeError);
    sent[options.length] ??= served.requests.map(({ path, body }) => [path, body]);
    assert.deepEqual(served.requests.map(({ path, body }) => [path, body]), sent[options.length]);
  }
  assert.deepEqual(sent[0], sent[1]);
  assert.deepEqual(sent[0].at(-1), ["/v1/settle", { grant: "g1", end: "roll_back" }]);
  await assert.rejects(client.scope(...TAKE, null, () => assert.fail("it began")), InvalidRequest);
});

test("a signal that ends a pause throws its own reason", async (t) => {
  for (const failure of ["full", "gone"]) {
    const controller = new AbortController();
    const reason = new RangeError("given up");
    const full = answer(503, { ...REFUSED_NOW, retry_after_ms: 60_000 }, "retry-after: 60\r\n");
    const served = await serving(t, (socket) => {
      // The pause is of a minute.
      socket.write(full, () => setTimeout(() => controller.abort(reason), 100));
    });
    const url = failure === "gone" ? "http://127.0.0.1:1" : served.url;
    if (failure === "gone") setTimeout(() => controller.abort(reason), 100);
    const client = clientOf(t, { url }, { retries: 100, answerTimeoutMs: 120_000 });
    await assert.rejects(client.acquire(...TAKE, { signal: controller.signal }), (error) => error === reason, failure);
  }
});

test("a call that is given up closes its connection, and throws the signal's reason", async (t) => {
  const controller = new AbortController();
  let ended;
  const served = await serving(t, (socket) => {
    ended = once(socket, "close");
    controller.abort(new Error("no longer needed"));
  });
  const client = clientOf(t, served);
  await assert.rejects(client.acquire(...TAKE, { signal: controller.signal }), { message: "no longer needed" });
  await ended;
  await assert.rejects(client.acquire(...TAKE, { signal: controller.signal }), { message: "no longer needed" });
  assert.equal(served.requests.length, 1);
});

test("a grant that is answered when its call is given up is rolled back", async (t) => {
  const controller = new AbortController();
  let settled;
  const rolledBack = new Promise((resolve) => (settled = resolve));
  const served = await serving(t, (socket, { path, body }) => {
    if (path === "/v1/settle") {
      socket.write(answer(200, { grant: null, settlement: "settled", lease: null, amounts: [] }));
      return settled(body);
    }
    // The answer is on its way, and not read, when the call is given up.
    socket.write(GRANTED);
    controller.abort(new Error("no longer needed"));
  });
  const client = clientOf(t, served);
  await assert.rejects(client.acquire(...TAKE, { signal: controller.signal }), { message: "no longer needed" });
  assert.deepEqual(await rolledBack, { grant: "g1", end: "roll_back" });
  assert.equal(served.requests.length, 2);
});

test("a call that is given up before it is sent is not sent", async (t) => {
  const served = await serving(t, (socket) => socket.write(GRANTED));
  const client = clientOf(t, served);
  await client.acquire(...TAKE);
  const controller = new AbortController();
  const acquire = client.acquire(...TAKE, { signal: controller.signal });
  controller.abort(new Error("no longer needed"));
  await assert.rejects(acquire, { message: "no longer needed" });
  assert.equal(served.requests.length, 1);
});

test("a refused connection is tried again, and names the remedy", async (t) => {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  const client = clientOf(t, { url: `http://127.0.0.1:${port}` }, { retries: 1 });
  await assert.rejects(client.acquire(...TAKE), (error) => {
    assert.ok(error instanceof Unavailable);
    assert.equal(error.applied, "no");
    assert.match(error.message, /start weirgate-agent/);
    return true;
  });
});

test("each address of a name is tried", async (t) => {
  const served = await serving(t, (socket) => socket.write(GRANTED));
  const { lookup } = dns;
  t.after(() => (dns.lookup = lookup));
  dns.lookup = (_, { all }, done) => {
    const found = ["127.0.0.2", "127.0.0.1"].map((address) => ({ address, family: 4 }));
    if (all) done(null, found);
    else done(null, found[0].address, 4);
  };
  const url = served.url.replace("127.0.0.1", "agents");
  assert.equal((await clientOf(t, { url }, { retries: 0 }).acquire(...TAKE)).token, "g1");
});

test("an answer that allows a repetition is repeated", async (t) => {
  const answers = [answer(503, REFUSED_NOW, "retry-after: 0\r\n"), GRANTED];
  const served = await serving(t, (socket) => socket.write(answers.shift()));
  assert.equal((await clientOf(t, served).acquire(...TAKE)).token, "g1");
  assert.equal(served.requests.length, 2);
});

test("repetitions end", async (t) => {
  const served = await serving(t, (socket) => socket.write(answer(503, REFUSED_NOW, "retry-after: 0\r\n")));
  await assert.rejects(clientOf(t, served, { retries: 3 }).acquire(...TAKE), { applied: "no", isTransient: true });
  assert.equal(served.requests.length, 4);
});

for (const body of [
  { ...REFUSED_NOW, applied: "unknown" },
  { ...REFUSED_NOW, retry: false },
  { detail: "a proxy that is no agent" },
]) {
  test(`an answer with ${JSON.stringify(body)} is not repeated`, async (t) => {
    const served = await serving(t, (socket) => socket.write(answer(503, body, "retry-after: 0\r\n")));
    await assert.rejects(clientOf(t, served).acquire(...TAKE), { applied: body.applied ?? "unknown" });
    assert.equal(served.requests.length, 1);
  });
}

test("a pause beyond the time of the call does not begin", async (t) => {
  const served = await serving(t, (socket) => socket.write(answer(503, REFUSED_NOW, "retry-after: 3600\r\n")));
  await assert.rejects(clientOf(t, served).acquire(...TAKE), { name: "Unavailable" });
  assert.equal(served.requests.length, 1);
});

for (const text of ["Wed, 21 Oct 2065 07:28:00 GMT", "-1", "1.5", "1e3", "9".repeat(10), "9".repeat(5_000), "1, 2", "x"]) {
  test(`a time to retry of ${text.slice(0, 30)} is not undercut`, async (t) => {
    const served = await serving(t, (socket) => socket.write(answer(503, REFUSED_NOW, `retry-after: ${text}\r\n`)));
    await assert.rejects(clientOf(t, served).acquire(...TAKE), { name: "Unavailable" });
    assert.equal(served.requests.length, 1);
  });
}

test("a pause is random, and never shorter than asked nor longer than the time left", () => {
  const failure = new Unavailable("busy", "no");
  for (const afterMs of [0, 1_000, 3_000, 9_000, undefined]) {
    const attempt = () => new Attempts(2, performance.now() + 10_000).pauseMs(failure, true, afterMs);
    const pauses = Array.from({ length: 200 }, attempt);
    const [least, most] = [Math.min(...pauses), Math.max(...pauses)];
    assert.ok(least >= (afterMs ?? 0) && most < 10_000, `${least} to ${most}`);
    assert.ok(new Set(pauses).size > 190);
    // Half of what is left, or as long again.
    const spread = Math.min(afterMs || 50, (10_000 - (afterMs ?? 0)) / 2);
    assert.ok(most - least > spread / 2, `${least} to ${most}`);
  }
  for (const afterMs of [10_001, 1e12]) {
    assert.throws(() => new Attempts(2, performance.now() + 10_000).pauseMs(failure, true, afterMs), Unavailable);
  }
});

test("requests that wait do not keep others back", async (t) => {
  const waiting = [];
  const served = await serving(t, (socket, { path }) => {
    if (path === "/v1/acquire") return waiting.push(socket);
    socket.write(answer(200, { grant: null, settlement: "settled", lease: null, amounts: [] }));
    waiting.forEach((other) => other.write(GRANTED));
  });
  const client = clientOf(t, served);
  const acquires = Array.from({ length: 30 }, () => client.acquire(...TAKE));
  while (waiting.length < 30) await new Promise(setImmediate);
  assert.equal(await client.restore("held").release(), "settled");
  await Promise.all(acquires);
  assert.equal(served.connections, 31);
});

test("the token is read again for each request", async (t) => {
  const served = await serving(t, (socket, { fields }) => {
    const isRight = fields["x-weirgate-token"] === "new";
    socket.write(isRight ? GRANTED : answer(401, { detail: "wrong token", applied: "no", retry: false }));
  });
  const { env } = process;
  t.after(() => (process.env = env));
  process.env = { ...env, WEIRGATE_AGENT_TOKEN: "old" };
  const client = clientOf(t, served);
  await assert.rejects(client.acquire(...TAKE), Unauthorized);
  process.env.WEIRGATE_AGENT_TOKEN = "new";
  assert.equal((await client.acquire(...TAKE)).token, "g1");
});

test("the session's token goes to the agent of this machine, and to no other", async (t) => {
  const served = await serving(t, (socket) => socket.write(GRANTED));
  const { env } = process;
  t.after(() => (process.env = env));
  process.env = { ...env, AWS_SESSION_TOKEN: "secret" };
  await clientOf(t, served).acquire(...TAKE);
  process.env.AWS_LAMBDA_FUNCTION_NAME = "f";
  await clientOf(t, served).acquire(...TAKE);
  // The same server, by a name that is not of this machine.
  await clientOf(t, { url: served.url.replace("127.0.0.1", "127.0.0.2") }, { retries: 0 }).acquire(...TAKE).catch(() => {});
  const tokens = served.requests.map(({ fields }) => fields["x-weirgate-token"]);
  assert.deepEqual(tokens.slice(0, 2), [undefined, "secret"]);
  assert.equal(tokenOf(endpoint("http://agent.internal:2774", undefined)), undefined);
  assert.equal(tokenOf(endpoint("unix:/run/agent.sock", undefined)), "secret");
  delete process.env.AWS_SESSION_TOKEN;
  process.env.AWS_CONTAINER_AUTHORIZATION_TOKEN = "of the container";
  assert.equal(tokenOf(endpoint("http://127.0.0.1:2774", undefined)), "of the container");
});

test("the session's token goes to the agents of the table", (t) => {
  const table = JSON.parse(readFileSync(`${CONTRACT}client/checks.json`, "utf8")).session_token;
  withVariables(t, { AWS_LAMBDA_FUNCTION_NAME: "f", AWS_SESSION_TOKEN: "secret" });
  for (const url of table.sent_to) assert.equal(tokenOf(endpoint(url, undefined)), "secret", url);
  for (const url of table.kept_from) assert.equal(tokenOf(endpoint(url, undefined)), undefined, url);
});

/** Sets variables, and removes those that are undefined, for a test. */
function withVariables(t, variables) {
  const { env } = process;
  t.after(() => (process.env = env));
  const all = { ...env, WEIRGATE_AGENT_URL: undefined, WEIRGATE_HTTP_PORT: undefined, WEIRGATE_AGENT_TOKEN: undefined };
  const set = Object.entries({ ...all, AWS_LAMBDA_FUNCTION_NAME: undefined, ...variables });
  process.env = Object.fromEntries(set.filter(([, value]) => value !== undefined));
}

const OF_SERVICES = {
  WEIRGATE_HTTP_PORT: "tcp://10.0.0.1:2774",
  WEIRGATE_HTTP_SERVICE_HOST: "10.0.0.1",
  WEIRGATE_HTTP_PORT_2774_TCP: "tcp://10.0.0.1:2774",
  WEIRGATE_AGENT_PORT: "tcp://10.0.0.1:2774",
  WEIRGATE_AGENT_SERVICE_HOST: "10.0.0.1",
  WEIRGATE_AGENT_SERVICE_PORT: "1",
};

test("variables of services, and empty ones, are no address", (t) => {
  for (const variables of [
    OF_SERVICES, { ...OF_SERVICES, WEIRGATE_HTTP_PORT: "udp://10.0.0.1:53" }, { ...OF_SERVICES, WEIRGATE_HTTP_PORT: "tcp://[fd00::1]:1" },
    { WEIRGATE_HTTP_PORT: "", WEIRGATE_AGENT_URL: "", WEIRGATE_AGENT_TOKEN: "" },
    { AWS_LAMBDA_FUNCTION_NAME: "", AWS_SESSION_TOKEN: "secret" },
    { AWS_LAMBDA_FUNCTION_NAME: "f", AWS_SESSION_TOKEN: "", AWS_CONTAINER_AUTHORIZATION_TOKEN: "" },
  ]) {
    withVariables(t, variables);
    const found = endpoint(undefined, undefined);
    assert.deepEqual(found.address, { host: "127.0.0.1", port: 2774 });
    assert.ok(!tokenOf(found));
  }
  withVariables(t, { WEIRGATE_HTTP_PORT: "2800" });
  assert.deepEqual(endpoint(undefined, undefined).address, { host: "127.0.0.1", port: 2800 });
});

test("an error names the variable that was read", (t) => {
  for (const port of ["x", "0", "65536", "-1", "1.5", "2774 ", "１２", "10.0.0.1:2774"]) {
    withVariables(t, { WEIRGATE_HTTP_PORT: port });
    assert.throws(() => endpoint(undefined, undefined), { name: "InvalidRequest", message: /^WEIRGATE_HTTP_PORT must be/ });
  }
  withVariables(t, { WEIRGATE_AGENT_URL: "tcp://10.0.0.1:2774" });
  assert.throws(() => endpoint(undefined, undefined), /^InvalidRequest: WEIRGATE_AGENT_URL must be/);
  withVariables(t, { WEIRGATE_AGENT_TOKEN: "ü" });
  assert.throws(() => tokenOf(endpoint(undefined, undefined)), /correct WEIRGATE_AGENT_TOKEN/);
  withVariables(t, { AWS_LAMBDA_FUNCTION_NAME: "f", AWS_SESSION_TOKEN: "ü" });
  assert.throws(() => tokenOf(endpoint(undefined, undefined)), /correct AWS_SESSION_TOKEN/);
});

test("what is no address of an agent is refused with the variable to correct", () => {
  for (const url of ["https://agent:1", "ftp://x", "127.0.0.1:2774", "unix:agent.sock", "http://a/path"]) {
    assert.throws(() => new Client({ url }), (error) => {
      assert.ok(error instanceof InvalidRequest);
      assert.match(error.message, /^url must be/);
      return true;
    });
  }
});
