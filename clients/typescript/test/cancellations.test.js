/** Calls that are given up in every turn of the event loop: nothing of them stays taken, and no release is lost. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client } from "weirgate";

import { answer, serving } from "./served.js";

const LEASED = answer(200, {
  grant: "g1",
  lease: { expires_at_ms: 1_900_000_000_000 },
  amounts: [{ slots: 1 }],
  limits: [],
  would_deny: null,
  degraded: null,
});
const ENDED = answer(200, { grant: null, settlement: "settled", lease: null, amounts: [] });
const TURNS = 40;
const TAKE = ["a", "api", { slots: 1 }];
const ignored = () => {};

/** Grants slots, and keeps what was granted and ended. A settlement whose client leaves at once is forgotten. */
async function leasing(t) {
  const counts = { granted: 0, ends: [] };
  const served = await serving(t, (socket, { path, body }) => {
    if (path === "/v1/acquire") {
      counts.granted += 1;
      return socket.write(LEASED);
    }
    afterTurns(5, () => {
      if (socket.readableEnded || socket.destroyed) return;
      counts.ends.push(body.end);
      socket.write(ENDED);
    });
  });
  const client = new Client({ url: served.url });
  t.after(() => client.close());
  return { client, counts, served };
}

function afterTurns(turns, work) {
  if (turns === 0) work();
  else setImmediate(() => afterTurns(turns - 1, work));
}

async function until(isTrue) {
  while (!isTrue()) await new Promise(setImmediate);
}

test("an acquire that is given up in any turn leaves no slot taken", { timeout: 60_000 }, async (t) => {
  const { client, counts } = await leasing(t);
  for (let turn = 0; turn < TURNS; turn += 1) {
    const controller = new AbortController();
    afterTurns(turn, () => controller.abort());
    const grant = await client.acquire(...TAKE, { signal: controller.signal }).catch(ignored);
    await grant?.release();
    await until(() => counts.granted === counts.ends.length);
  }
});

for (const [name, change] of Object.entries({
  release: (grant, options) => grant.release(undefined, options),
  rollBack: (grant, options) => grant.rollBack(options),
})) {
  test(`a ${name} goes on if the wait for it is given up in any turn`, { timeout: 60_000 }, async (t) => {
    const { client, counts } = await leasing(t);
    for (let turn = -1; turn < TURNS; turn += 1) {
      const grant = await client.acquire(...TAKE);
      const controller = new AbortController();
      if (turn < 0) controller.abort(new Error("given up"));
      else afterTurns(turn, () => controller.abort(new Error("given up")));
      const outcome = await change(grant, { signal: controller.signal }).catch((error) => error.message);
      assert.ok(outcome === "settled" || outcome === "given up", outcome);
      await until(() => counts.granted === counts.ends.length && grant.isEnded);
    }
  });
}

test("a client that is closed in any turn has ended what goes on in the background", { timeout: 60_000 }, async (t) => {
  const { counts, served } = await leasing(t);
  let kept = 0;
  for (let turn = 0; turn < TURNS; turn += 1) {
    const client = new Client({ url: served.url });
    const grant = await client.acquire(...TAKE);
    const controller = new AbortController();
    const { signal } = controller;
    grant.release(undefined, { signal }).catch(ignored);
    const acquire = client.acquire(...TAKE, { signal }).then(
      () => 1,
      () => 0,
    );
    await new Promise((done) => afterTurns(turn, done));
    controller.abort();
    await client.close();
    kept += await acquire;
    assert.ok(grant.isEnded, `turn ${turn}`);
    assert.equal(counts.granted, counts.ends.length + kept, `turn ${turn}`);
    await until(() => served.sockets.size === 0);
  }
  assert.ok(kept > 0 && kept < TURNS, `${kept}`);
});

test("closing ends no call that its caller still awaits", { timeout: 60_000 }, async (t) => {
  const { client, counts } = await leasing(t);
  const calls = [client.acquire(...TAKE), client.acquire(...TAKE)];
  const closed = client.close();
  const grants = await Promise.all(calls);
  await closed;
  // A closed client opens connections again.
  await Promise.all(grants.map((grant) => grant.release()));
  await client.close();
  assert.equal(counts.ends.length, 2);
});

test("a scope releases whatever signal its acquire had", { timeout: 60_000 }, async (t) => {
  const { client, counts } = await leasing(t);
  const controller = new AbortController();
  await client.scope(...TAKE, { signal: controller.signal }, () => controller.abort());
  await client.close();
  await assert.rejects(client.scope(...TAKE, () => Promise.reject(new RangeError("the work"))), RangeError);
  assert.deepEqual(counts.ends, ["release", "roll_back"]);
});

test("the signal of a scope ends its wait for an agent that hangs", { timeout: 60_000 }, async (t) => {
  for (const fails of [false, true]) {
    let lose;
    const served = await serving(t, (socket, { path }) => {
      if (path === "/v1/acquire") socket.write(LEASED);
      else lose = () => socket.destroy();
    });
    const warnings = [];
    const warned = (warning) => warnings.push(warning.message);
    process.on("warning", warned);
    t.after(() => process.off("warning", warned));
    const client = new Client({ url: served.url, answerTimeoutMs: 3_600_000 });
    const controller = new AbortController();
    const work = () => (fails ? Promise.reject(new RangeError("the work")) : "done");
    const scope = client.scope(...TAKE, { signal: controller.signal }, work);
    await until(() => lose);
    controller.abort();
    if (fails) await assert.rejects(scope, RangeError);
    else assert.equal(await scope, "done");
    lose();
    await client.close();
    await until(() => warnings.some((message) => message.includes("could not be settled")));
  }
});

test("a disposed grant is released once", { timeout: 60_000 }, async (t) => {
  const { client, counts } = await leasing(t);
  const grant = await client.acquire(...TAKE);
  await grant[Symbol.asyncDispose]();
  await grant[Symbol.asyncDispose]();
  assert.ok(grant.isEnded);
  const rolledBack = await client.acquire(...TAKE);
  await rolledBack.rollBack();
  await rolledBack[Symbol.asyncDispose]();
  assert.deepEqual(counts.ends, ["release", "roll_back"]);
});

test("a signal ends the wait for a settlement", { timeout: 60_000 }, async (t) => {
  let settle;
  const served = await serving(t, (socket, { path }) => {
    if (path === "/v1/acquire") socket.write(LEASED);
    else settle = () => socket.write(ENDED);
  });
  const client = new Client({ url: served.url });
  t.after(() => client.close());
  const grant = await client.acquire(...TAKE);
  const controller = new AbortController();
  const release = grant.release(undefined, { signal: controller.signal });
  await until(() => settle);
  controller.abort(new Error("given up"));
  await assert.rejects(release, { message: "given up" });
  assert.ok(grant.isUncertain && !grant.isEnded);
  settle();
  await until(() => grant.isEnded);
});
