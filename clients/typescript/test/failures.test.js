/** What calls throw instead of an answer, by `clients/contract/client/failures.json`. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import * as weirgate from "weirgate";

import { answer, serving } from "./served.js";
import { CONTRACT } from "./stack.js";

const { failures, foreign } = JSON.parse(readFileSync(`${CONTRACT}client/failures.json`, "utf8"));
const BUCKETS = [
  { entity: "a", resource: "api", take: { rpm: 1.5 } },
  { entity: "b", resource: "api", take: { rpm: { atLeast: 1, atMost: 5 } } },
];
const CALLS = {
  acquire: (client, options) => client.acquire("a", "api", { rpm: 1.5 }, options),
  acquireAll: (client, options) => client.acquireAll(BUCKETS, options),
  settle: (client) => client.restore("g").adjust({ rpm: 1 }),
  peek: (client) => client.peek("a", "api"),
  usage: (client) => client.usage({ entity: "a", start: new Date(0), end: new Date(86_400_000) }),
  usageRows: (client) => client.usageRows({ resource: "api", by: "hour", start: new Date(0), end: new Date(3_600_000) }),
  limits: (client) => client.limits("a", "api"),
  setLimits: (client) => client.setLimits({ resource: "api", limits: ["rpm=5/minute"] }),
  deleteLimits: (client) => client.deleteLimits({ entity: "a" }),
};

/** Returns a client of a server that fails in one way, and what the server was asked. */
async function failing(t, failure, options = {}) {
  const served = await serving(t, (socket) => (failure === "lost" ? socket.destroy() : socket.write(answer(...failure))));
  const url = failure === "refused" ? "http://127.0.0.1:1" : served.url;
  const client = new weirgate.Client({ url, retries: 0, ...options });
  t.after(() => client.close());
  return { client, served };
}

async function thrown(call) {
  return call().then(
    () => assert.fail("it returned"),
    (error) => error,
  );
}

function checkThrown(error, { raises, is_transient: isTransient }) {
  assert.equal(error.constructor, weirgate[raises], `${error.name}: ${error.message}`);
  assert.equal(error.isTransient, isTransient);
}

for (const expected of failures) {
  const { failure } = expected;
  for (const [name, call] of Object.entries(CALLS)) {
    test(`${JSON.stringify(failure)} is an error of its class for ${name}`, { timeout: 60_000 }, async (t) => {
      const { client } = await failing(t, failure);
      checkThrown(await thrown(() => call(client)), expected);
    });
  }
}

for (const body of foreign.bodies) {
  const name = `an answer of ${JSON.stringify(body)} leaves unknown what was applied`;
  test(name, { timeout: 60_000 }, async (t) => {
    const failure = [0, body];
    const { client } = await failing(t, failure);
    for (let status = 400; status < 600; status += 1) {
      failure[0] = status;
      const error = await thrown(() => CALLS.acquire(client));
      checkThrown(error, { raises: "Unavailable", is_transient: foreign.transient.includes(status) || status > 500 });
      assert.deepEqual([error.applied, error.status], ["unknown", status]);
      assert.ok(!error.message.includes("of a proxy"));
    }
  });
}

const ASKED = { acquire: [{ rpm: 1.5 }], acquireAll: [{ rpm: 1.5 }, { rpm: 5 }] };

const POLICIES = ["raise", "deny", "allow"];
/** Of the client, and of one call. */
const CHOICES = POLICIES.flatMap((ofClient) => [undefined, ...POLICIES].map((ofCall) => [ofClient, ofCall]));

for (const expected of failures) {
  for (const [ofClient, ofCall] of CHOICES) {
    const { failure, is_transient: isTransient } = expected;
    const decides = isTransient ? (ofCall ?? ofClient) : "raise";
    const name = `${ofClient}, ${ofCall ?? "the default"} of a call, decides ${JSON.stringify(failure)} only if it may pass by itself`;
    test(name, { timeout: 60_000 }, async (t) => {
      const { client, served } = await failing(t, failure, { onAgentUnavailable: ofClient });
      const options = { onAgentUnavailable: ofCall };
      for (const call of ["settle", "peek", "usage", "usageRows"]) checkThrown(await thrown(() => CALLS[call](client)), expected);
      const settlements = () => served.requests.filter(({ path }) => path === "/v1/settle").length;
      const before = settlements();
      for (const [call, amounts] of Object.entries(ASKED)) {
        if (decides === "allow") {
          await checkAllowed(await CALLS[call](client, options), amounts, client);
          continue;
        }
        const error = await thrown(() => CALLS[call](client, options));
        if (decides === "raise") {
          checkThrown(error, expected);
          continue;
        }
        assert.equal(error.constructor, weirgate.Denied);
        checkThrown(error.cause, expected);
        assert.deepEqual([error.status, error.retryAfterMs, error.limits], [429, 1_000, []]);
        assert.deepEqual(error.headers, { "x-ratelimit-degraded": "true", "retry-after": "1" });
        assert.ok(!JSON.stringify(error.problem).includes("127.0.0.1"));
      }
      assert.equal(settlements(), before, "what was not taken is not settled");
    });
  }
}

async function checkAllowed(grant, amounts, client) {
  assert.match(grant.degraded, /^without the agent: /);
  assert.deepEqual([grant.amounts, grant.limits, grant.expiresAt], [amounts, [], null]);
  assert.deepEqual(grant.headers, { "x-ratelimit-degraded": "true" });
  const restored = client.restore(grant.token);
  for (const held of [grant, restored]) {
    assert.equal(await held.adjust({ rpm: 2 }), "settled");
    await held.giveBack({ rpm: 1 });
    await held.takeMore({ rpm: 1 });
    await held.renew(60_000);
    await assert.rejects(held.adjust({ rpm: -1 }), weirgate.InvalidRequest);
  }
  await grant.release({ rpm: 3 });
  await restored.rollBack();
  for (const held of [grant, restored]) {
    assert.ok(held.isEnded);
    await assert.rejects(held.release(), weirgate.InvalidRequest);
  }
}

test("a scope runs without the agent if the policy allows, and a signal still ends it", async (t) => {
  const { client } = await failing(t, "refused", { onAgentUnavailable: "allow" });
  let grant;
  const result = await client.scope("a", "api", { rpm: 1 }, (held) => {
    grant = held;
    return 5;
  });
  assert.ok(result === 5 && grant.isEnded && grant.degraded !== null);
  const signal = AbortSignal.abort(new RangeError("given up"));
  await assert.rejects(client.acquire("a", "api", { rpm: 1 }, { signal }), RangeError);
});

test("another policy is refused", async () => {
  const refusal = { name: "InvalidRequest", message: /onAgentUnavailable must be "raise", "deny" or "allow"/ };
  const client = new weirgate.Client({ url: "http://127.0.0.1:1" });
  for (const given of ["alow", "error", null, true, ["allow"]]) {
    assert.throws(() => new weirgate.Client({ onAgentUnavailable: given }), refusal);
    await assert.rejects(CALLS.acquire(client, { onAgentUnavailable: given }), refusal);
    await assert.rejects(CALLS.acquireAll(client, { onAgentUnavailable: given }), refusal);
  }
});
