/**
 * An HTTP service whose callers are limited by a sidecar. PORT and WEIRGATE_AGENT_URL come from the environment, and
 * API_KEYS, a JSON object of each key's tenant. With Express, weirgate-express does what is here beside the report.
 */

import http from "node:http";

import { Client, Refused, limit } from "weirgate";

const LIMITS = [limit.perMinute("requests", 100), limit.slots("slots", 10)];
/** A client chooses neither its tenant nor what a request costs. */
const TENANTS = new Map(Object.entries(JSON.parse(process.env.API_KEYS ?? "{}")));
const client = new Client();

const server = http.createServer(async (request, response) => {
  const tenant = TENANTS.get(String(request.headers["x-api-key"]));
  if (tenant === undefined) return answer(response, 401, {}, { error: "send your key in x-api-key, once" });
  // A client that leaves gives its slot back, also while it waits for one.
  const left = new AbortController();
  response.once("close", () => left.abort());
  const options = { limits: LIMITS, waitMs: 200, timeoutMs: 500, signal: left.signal };
  try {
    await client.scope(tenant, "report", { requests: 1, slots: 1 }, options, async (grant) => {
      // A report that fails counts too, so the work does not throw: a client may make as many as it likes of them.
      const report = await makeReport(tenant, String(request.url)).catch(() => undefined);
      if (report) answer(response, 200, grant.headers, report);
      else answer(response, 500, grant.headers, { error: "the report failed" });
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
  // Without a decision nothing is served.
  else answer(response, 503, { "retry-after": "1" }, { error: "try again" });
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

/**
 * @param {string} tenant
 * @param {string} path
 */
async function makeReport(tenant, path) {
  if (path === "/broken") throw new Error("no data");
  return { of: tenant };
}

server.listen(Number(process.env.PORT ?? 3000), process.env.HOST ?? "127.0.0.1", () => {
  const address = server.address();
  console.log(`listening on ${typeof address === "object" ? address?.port : address}`);
});
process.once("SIGTERM", () => server.close(() => client.close()));
