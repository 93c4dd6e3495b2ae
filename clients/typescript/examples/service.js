/** An HTTP service whose callers are limited by a sidecar. PORT and WEIRGATE_AGENT_URL come from the environment. */

import http from "node:http";

import { Client, InvalidRequest, Refused, Unavailable, limit } from "weirgate";

const LIMITS = [limit.perMinute("requests", 100), limit.slots("slots", 10)];
const client = new Client();

const server = http.createServer(async (request, response) => {
  const key = request.headers["x-api-key"];
  if (typeof key !== "string") return answer(response, 401, {}, { error: "send your key in x-api-key" });
  // A client that leaves gives its slot back, also while it waits for one.
  const left = new AbortController();
  response.once("close", () => left.abort());
  const options = { limits: LIMITS, waitMs: 200, timeoutMs: 500, signal: left.signal };
  try {
    await client.scope(key, "report", { requests: 1, slots: 1 }, options, async (grant) => {
      const report = await makeReport(key);
      answer(response, 200, grant.headers, report);
    });
  } catch (error) {
    refuse(response, error);
  }
});

/**
 * @param {http.ServerResponse} response
 * @param {unknown} error
 */
function refuse(response, error) {
  // Denied, NeverFits or Disabled: as the agent answered.
  if (error instanceof Refused) answer(response, error.status, error.headers, error.problem);
  else if (error instanceof InvalidRequest) answer(response, 400, {}, { error: error.message });
  else if (error instanceof Unavailable) answer(response, 503, { "retry-after": "1" }, { error: "try again" });
  else answer(response, 500, {}, { error: "the report failed" });
}

/**
 * @param {http.ServerResponse} response
 * @param {number} status
 * @param {Readonly<Record<string, string>>} headers
 * @param {unknown} body
 */
function answer(response, status, headers, body) {
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(body));
}

/** @param {string} key */
async function makeReport(key) {
  if (key === "broken") throw new Error("no data");
  return { of: key };
}

server.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", () => {
  const address = server.address();
  console.log(`listening on ${typeof address === "object" ? address?.port : address}`);
});
process.once("SIGTERM", () => server.close(() => client.close()));
