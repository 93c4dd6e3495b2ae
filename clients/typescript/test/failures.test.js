/** What calls throw instead of an answer, by `clients/contract/client/failures.json`. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import * as weirgate from "weirgate";

import { answer, serving } from "./served.js";
import { CONTRACT } from "./stack.js";

const { failures } = JSON.parse(readFileSync(`${CONTRACT}client/failures.json`, "utf8"));
const BUCKETS = [
  { entity: "a", resource: "api", take: { rpm: 1.5 } },
  { entity: "b", resource: "api", take: { rpm: { atLeast: 1, atMost: 5 } } },
];
const CALLS = {
  acquire: (client) => client.acquire("a", "api", { rpm: 1.5 }),
  acquireAll: (client) => client.acquireAll(BUCKETS),
  settle: (client) => client.restore("g").adjust({ rpm: 1 }),
  peek: (client) => client.peek("a", "api"),
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
