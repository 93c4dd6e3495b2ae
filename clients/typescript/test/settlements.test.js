/** Scopes whose settlement fails, against the real agent behind a relay that loses answers. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Client, Denied, limit } from "weirgate";

import { answer, serving } from "./served.js";
import { Agent, Backend } from "./stack.js";

const LIMITS = [limit.rate("tpm", 1, 365 * 86_400_000, { burst: 1000 })];
const SLOTS = [limit.slots("slots", 1)];
/** Time within which a settlement that waits for no other one is answered. */
const OVERTAKES_MS = 300;
const REFUSED = answer(503, { status: 503, detail: "no decision", applied: "no", retry: false });

let backend;
let agent;

before(async () => {
  backend = await Backend.start();
  agent = await Agent.start(backend.variables);
});

after(async () => {
  await agent?.stop();
  await backend?.stop();
});

/**
 * Hands requests to the agent. Refuses those with `refused` in the body, and loses the answers to `lost` ones. After
 * `halves` ones it answers, with this status, that something failed after the settlement was applied, and after `replaced`
 * ones as a proxy does. It answers `late` ones, which it says by `got`, after one that another connection sends is
 * answered, or else after a moment.
 */
async function relay(t, { lost, refused, halves, replaced, status = 503, late, got }) {
  let overtake;
  const overtaken = new Promise((resolve) => (overtake = resolve));
  const answered = [];
  const served = await serving(t, async (socket, { path, body }) => {
    if (refused in body) return socket.write(REFUSED);
    const response = await fetch(agent.url + path, { method: "POST", body: JSON.stringify(body) });
    const reply = await response.json();
    const problem = { status, detail: "stopped", applied: "unknown", retry: false, grant: reply.grant };
    if (replaced in body) return socket.write(answer(status, "of a proxy"));
    if (halves in body) return socket.write(answer(status, problem));
    if (lost in body) return socket.destroy();
    if (late in body) {
      got();
      await Promise.race([overtaken, sleep(OVERTAKES_MS, undefined, { ref: false })]);
    }
    if (served.requests.some((request) => late in request.body)) overtake();
    answered.push(body);
    socket.write(answer(response.status, reply));
  });
  return Object.assign(served, { answered });
}

/** Runs work with 500 tokens of 1,000; returns its error, the balance afterwards, and how the grant ended. */
async function scoped(t, faults, work) {
  const served = await relay(t, faults);
  const [behind, direct] = [served.url, agent.url].map((url) => new Client({ url, retries: 0 }));
  t.after(() => [behind, direct].forEach((client) => client.close()));
  const entity = t.name.replaceAll(" ", "-");
  const error = await behind.scope(entity, "api", { tpm: 500 }, { limits: LIMITS }, work).catch((thrown) => thrown);
  const balance = await direct.remaining(entity, "api", "tpm", { limits: LIMITS });
  return { error, balance, ends: served.requests.map(({ body }) => body.end).filter(Boolean) };
}

const ignored = () => {};

test("a scope does not roll back after an adjustment whose answer was lost", async (t) => {
  const { error, balance, ends } = await scoped(t, { lost: "adjust" }, (grant) => grant.adjust({ tpm: 300 }));
  assert.equal(error.applied, "unknown");
  assert.deepEqual([balance, ends], [700, []]);
});

const CHANGES = {
  adjust: (grant) => grant.adjust({ tpm: 300 }),
  giveBack: (grant) => grant.giveBack({ tpm: 100 }),
  takeMore: (grant) => grant.takeMore({ tpm: 100 }),
  release: (grant) => grant.release({ tpm: 300 }),
  rollBack: (grant) => grant.rollBack(),
};

for (const [name, change] of Object.entries(CHANGES)) {
  // Its token is outdated, so it would count twice.
  test(`no ${name} follows an adjustment whose answer was lost`, async (t) => {
    const { error, balance, ends } = await scoped(t, { lost: "adjust" }, async (grant) => {
      await grant.adjust({ tpm: 300 }).catch(ignored);
      assert.ok(grant.isUncertain);
      await change(grant);
    });
    assert.match(error.message, /count twice/);
    assert.deepEqual([balance, ends], [700, []]);
  });
}

for (const status of [400, 401, 403, 404, 408, 413, 425, 429, 502]) {
  test(`an answer that a proxy replaced by ${status} is lost`, async (t) => {
    const { error, balance } = await scoped(t, { replaced: "adjust", status }, async (grant) => {
      await grant.adjust({ tpm: 300 }).catch(ignored);
      await grant.giveBack({ tpm: 100 });
    });
    assert.match(error.message, /count twice/);
    assert.equal(balance, 700);
  });
}

test("of several rollbacks at once one counts", async (t) => {
  const { balance } = await scoped(t, {}, async (grant) => {
    const outcomes = await Promise.allSettled([grant.rollBack(), grant.rollBack(), grant.rollBack()]);
    assert.deepEqual(outcomes.map(({ status }) => status), ["fulfilled", "rejected", "rejected"]);
  });
  assert.equal(balance, 1000);
});

test("a rollback whose answer was lost is not repeated", async (t) => {
  const { balance } = await scoped(t, { lost: "end" }, async (grant) => {
    await assert.rejects(grant.rollBack(), { applied: "unknown" });
    await assert.rejects(grant.rollBack(), /count twice/);
    assert.equal(await grant.release(), "settled");
  });
  assert.equal(balance, 1000);
});

for (const status of [400, 500, 503]) {
  test(`a settlement that stopped halfway goes on with the new token after ${status}`, async (t) => {
    const { error, balance, ends } = await scoped(t, { halves: "adjust", status }, async (grant) => {
      const old = grant.token;
      const stopped = await grant.adjust({ tpm: 300 }).catch((thrown) => thrown);
      assert.equal(stopped.applied, "unknown");
      assert.equal(stopped.isTransient, status === 503);
      assert.notEqual(grant.token, old);
      assert.equal(grant.token, stopped.grant);
      // By the old token, 100 less would be 400.
      await grant.giveBack({ tpm: 100 });
      throw new RangeError("the work");
    });
    assert.ok(error instanceof RangeError);
    // The work is done, so the scope does not roll back.
    assert.deepEqual([balance, ends], [800, []]);
  });
}

test("a scope does not roll back if only its settlement was refused", async (t) => {
  const { error, balance } = await scoped(t, { refused: "adjust" }, (grant) => grant.release({ tpm: 300 }));
  assert.equal(error.applied, "no");
  assert.equal(balance, 500);
});

test("a scope does not roll back if what the vendor answered could not be told", async (t) => {
  const { error, balance } = await scoped(t, { lost: "vendor" }, (grant) => grant.vendorSaid({ status: 200, headers: {} }));
  assert.equal(error.applied, "unknown");
  assert.equal(balance, 500);
});

test("a scope whose work fails after a settlement rolls back by the new token", async (t) => {
  const { error, balance } = await scoped(t, {}, async (grant) => {
    await grant.adjust({ tpm: 300 });
    throw new RangeError("the work");
  });
  assert.ok(error instanceof RangeError);
  assert.equal(balance, 1000);
});

test("a scope rolls back if taking more was denied", async (t) => {
  const { error, balance } = await scoped(t, {}, (grant) => grant.takeMore({ tpm: 600 }));
  assert.ok(error instanceof Denied);
  assert.equal(balance, 1000);
});

test("a scope that fails while a settlement is in flight does not roll back", async (t) => {
  let adjusting;
  const { balance } = await scoped(t, {}, (grant) => {
    adjusting = grant.adjust({ tpm: 300 });
    throw new RangeError("the work");
  });
  await adjusting;
  assert.ok(balance <= 700);
});

/**
 * Runs settlements while the answer to the first one is late, with a grant of a bucket with a lease and one without, and
 * ends the grant. Returns the balance afterwards, and what was answered in which order.
 */
async function overlapping(t, late, [first, second], end) {
  let got;
  const hasGot = new Promise((resolve) => (got = resolve));
  const served = await relay(t, { late, got });
  const [behind, direct] = [served.url, agent.url].map((url) => new Client({ url, retries: 0 }));
  t.after(() => Promise.all([behind, direct].map((client) => client.close())));
  const entity = t.name.replaceAll(" ", "-");
  const grant = await behind.acquireAll([
    { entity: `${entity}-worker`, resource: "api", take: { slots: 1 }, limits: SLOTS },
    { entity, resource: "api", take: { tpm: 500 }, limits: LIMITS },
  ]);
  // What is left of the limit has room for amounts that would return twice.
  const other = await direct.acquire(entity, "api", { tpm: 400 }, { limits: LIMITS });
  t.after(() => other.release());
  const settling = first(grant);
  await hasGot;
  await second(grant);
  await settling;
  await end(grant);
  assert.ok(!grant.isUncertain && grant.isEnded);
  return { balance: await direct.remaining(entity, "api", "tpm", { limits: LIMITS }), answered: served.answered };
}

// What two parts of a process may do with one grant at the same time, such as a heartbeat and its work.
const ORDERED = {
  renew_ms: (grant) => grant.renew(600_000),
  adjust: (grant) => grant.adjust({ tpm: 300 }),
  give_back: (grant) => grant.giveBack({ tpm: 100 }),
  take_more: (grant) => grant.takeMore({ tpm: 50 }),
};

for (const first of Object.keys(ORDERED)) {
  for (const second of Object.keys(ORDERED)) {
    // The answer to the first one has the text of before, which would bring back what the second one returned.
    test(`${second} waits for ${first}`, async (t) => {
      const settlements = [ORDERED[first], ORDERED[second]];
      const { balance } = await overlapping(t, first, settlements, (grant) => grant.rollBack());
      assert.equal(balance, 600);
    });
  }
}

test("a release without amounts waits for no other settlement", async (t) => {
  const settlements = [ORDERED.renew_ms, (grant) => grant.release()];
  const { answered } = await overlapping(t, "renew_ms", settlements, () => {});
  const names = answered.flatMap((body) => ["renew_ms", "end"].filter((name) => name in body));
  assert.deepEqual(names, ["end", "renew_ms"]);
});
