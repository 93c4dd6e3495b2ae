/** Where the agent is, and the token that it asks for. */

import { InvalidRequest } from "./errors.js";

const DEFAULT_PORT = "2774";
const LOCAL_HOSTS = new Set(["127.0.0.1", "[::1]", "localhost"]);

/**
 * @typedef {object} Endpoint
 * @property {string} url
 * @property {{ socketPath: string } | { host: string, port: number }} address
 * @property {string} hostField
 * @property {boolean} isLocal
 * @property {string | undefined} token Token given by the application; otherwise it comes from the environment.
 */

/**
 * @param {string | undefined} given
 * @param {string | undefined} token
 * @returns {Endpoint}
 */
export function endpoint(given, token) {
  // The extension reads the port too.
  const { WEIRGATE_AGENT_URL, WEIRGATE_HTTP_PORT } = process.env;
  const url = given || WEIRGATE_AGENT_URL || `http://127.0.0.1:${WEIRGATE_HTTP_PORT || DEFAULT_PORT}`;
  const unix = /^unix:(?:\/\/)?(\/.+)$/.exec(url);
  if (unix?.[1]) return { url, address: { socketPath: unix[1] }, hostField: "localhost", isLocal: true, token };
  const parsed = parse(url);
  if (parsed?.protocol !== "http:" || parsed.pathname !== "/" || parsed.search || parsed.username) {
    throw new InvalidRequest(
      `the agent's URL must be http://host:port or unix:/path, got ${url}: correct WEIRGATE_AGENT_URL`,
    );
  }
  const address = { host: parsed.hostname.replace(/^\[|\]$/g, ""), port: Number(parsed.port || 80) };
  return { url, address, hostField: parsed.host, isLocal: LOCAL_HOSTS.has(parsed.hostname), token };
}

/**
 * Returns the token of today. In a Lambda function the extension asks for the token of the function's credentials,
 * which goes to no other machine.
 *
 * @param {Endpoint} endpoint
 * @returns {string | undefined}
 */
export function tokenOf({ token, isLocal }) {
  if (token !== undefined) return token;
  const { env } = process;
  if (env.WEIRGATE_AGENT_TOKEN || !isLocal || !env.AWS_LAMBDA_FUNCTION_NAME) return env.WEIRGATE_AGENT_TOKEN;
  // The second one with SnapStart, where there is no first one.
  return env.AWS_SESSION_TOKEN || env.AWS_CONTAINER_AUTHORIZATION_TOKEN;
}

/** @param {string} url */
function parse(url) {
  try {
    return new URL(url);
  } catch {
    return undefined;
  }
}
