/**
 * Measures what the client adds to the agent's own time: `make clients-measure`. The agent answers from prefetched
 * tokens. Its own time is that of the same bytes on a bare socket. Blocks of calls alternate.
 */

import { once } from "node:events";
import net from "node:net";

import { Client, limit } from "weirgate";

import { acquire } from "./src/request.js";
import { Agent, Backend } from "./test/stack.js";

const ROUNDS = 20;
const CALLS = 500;
const TAKE = { rpm: 1 };
const LIMITS = [limit.perSecond("rpm", 1_000_000, { burst: 100_000_000 })];

const backend = await Backend.start();
const agent = await Agent.start({ ...backend.variables, WEIRGATE_AGENT_PREFETCH: "bench=10" });
try {
  await measure(agent.url);
} finally {
  await agent.stop();
  await backend.stop();
}

async function measure(url) {
  const client = new Client({ url });
  const { port } = new URL(url);
  const socket = net.connect({ port: Number(port), host: "127.0.0.1", noDelay: true });
  await once(socket, "connect");
  const { path, body } = acquire("measured", "bench", TAKE, { limits: LIMITS });
  const data = `POST ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
  const times = { agent: [], client: [] };
  for (let round = 0; round <= ROUNDS; round += 1) {
    if (round === 1) Object.keys(times).forEach((name) => (times[name] = [])); // the first one warms up
    await timed(times.agent, () => bare(socket, data));
    await timed(times.client, () => client.acquire("measured", "bench", TAKE, { limits: LIMITS }));
  }
  socket.destroy();
  client.close();
  const own = quantile(times.agent, 0.5);
  console.log("| | p50 us | p99 us | added at p50 us |\n|---|---|---|---|");
  for (const [name, ofName] of Object.entries(times)) {
    const p50 = quantile(ofName, 0.5);
    console.log(`| Node ${name} | ${p50.toFixed(0)} | ${quantile(ofName, 0.99).toFixed(0)} | ${(p50 - own).toFixed(0)} |`);
  }
}

async function timed(times, call) {
  for (let calls = 0; calls < CALLS; calls += 1) {
    const start = performance.now();
    await call();
    times.push(performance.now() - start);
  }
}

/** Sends a request and reads its answer, which comes in one piece. */
async function bare(socket, data) {
  const answered = new Promise((resolve) => socket.once("data", resolve));
  socket.write(data);
  const answer = String(await answered);
  if (!answer.startsWith("HTTP/1.1 200")) throw new Error(answer);
}

function quantile(times, part) {
  return times.sort((a, b) => a - b)[Math.floor(times.length * part)] * 1000;
}
