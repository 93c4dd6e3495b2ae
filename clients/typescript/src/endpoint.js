/** Where the agent is, and the token that it asks for. */

import * as check from "./check.js";
import { InvalidRequest } from "./errors.js";

const PRINTABLE = /^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/;
const DEFAULT_PORT = "2774";
const LOCAL_HOSTS = new Set(["127.0.0.1", "::1", "localhost"]);
/** Kubernetes and links of containers set the port so for a service named `weirgate-http`. */
const OF_A_SERVICE = /^[a-z]+:\/\//;
const URL_OF_AN_AGENT = /^http:\/\/([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?\/?$/i;

/**
 * @typedef {object} Endpoint
 * @property {string} url
 * @property {{ socketPath: string } | { host: string, port: number }} address
 * @property {string} hostField
 * @property {boolean} isLocal
 * @property {string | undefined} token Token given by the application; otherwise it comes from the environment.
 */

/**
 * Returns the endpoint of a URL, or of the environment's, or the default one. Requires that its token can be sent.
 *
 * @param {string | undefined} url
 * @param {string | undefined} token
 * @returns {Endpoint}
 */
export function endpoint(url, token) {
  const found = endpointOf(url, token);
  tokenOf(found);
  return found;
}

/**
 * @param {string | undefined} url
 * @param {string | undefined} token
 * @returns {Endpoint}
 */
function endpointOf(url, token) {
  if (token !== undefined && typeof token !== "string") {
    throw new InvalidRequest(`token must be text, got a value of type ${typeof token}`);
  }
  if (url !== undefined) return parsed(check.text("url", url), token, "url");
  const { WEIRGATE_AGENT_URL } = process.env;
  if (WEIRGATE_AGENT_URL) return parsed(WEIRGATE_AGENT_URL, token, "WEIRGATE_AGENT_URL");
  return parsed(`http://127.0.0.1:${port()}`, token, "WEIRGATE_HTTP_PORT");
}

/**
 * Returns the token of today. In a Lambda function the extension asks for the token of the function's credentials,
 * which goes to no other machine.
 *
 * @param {Endpoint} endpoint
 * @returns {string | undefined}
 */
export function tokenOf({ token, isLocal }) {
  const source = token === undefined ? tokenVariable(isLocal) : "token";
  const found = token ?? process.env[source];
  if (found && !PRINTABLE.test(found)) {
    throw new InvalidRequest(
      `the agent's token must be printable ASCII, got ${found.length} characters with others: correct ${source}`,
    );
  }
  return found;
}

/**
 * Returns the variable that has the token.
 *
 * @param {boolean} isLocal
 */
function tokenVariable(isLocal) {
  const { env } = process;
  if (env.WEIRGATE_AGENT_TOKEN || !isLocal || !env.AWS_LAMBDA_FUNCTION_NAME) return "WEIRGATE_AGENT_TOKEN";
  // The second one with SnapStart, where there is no first one.
  return env.AWS_SESSION_TOKEN ? "AWS_SESSION_TOKEN" : "AWS_CONTAINER_AUTHORIZATION_TOKEN";
}

/** The extension reads the variable too. */
function port() {
  const { WEIRGATE_HTTP_PORT: found } = process.env;
  if (!found || OF_A_SERVICE.test(found)) return DEFAULT_PORT;
  if (!/^[0-9]{1,5}$/.test(found) || Number(found) < 1 || Number(found) > 65_535) {
    const got = check.shown(found);
    throw new InvalidRequest(`WEIRGATE_HTTP_PORT must be 1 to 65535, got ${got}; set a port, or leave it out`);
  }
  return found;
}

/**
 * @param {string} url
 * @param {string | undefined} token
 * @param {string} source
 * @returns {Endpoint}
 */
function parsed(url, token, source) {
  const unix = /^unix:(?:\/\/)?(\/[^\0]+)$/.exec(url);
  if (unix?.[1]) return { url, address: { socketPath: unix[1] }, hostField: "localhost", isLocal: true, token };
  const [, name, digits] = URL_OF_AN_AGENT.exec(url) ?? [];
  const port = Number(digits ?? 80);
  if (!name || port < 1 || port > 65_535) {
    throw new InvalidRequest(
      `${source} must be http://host:port or unix:/path, got ${withoutSecrets(url)}: ` +
        `correct ${source === "url" ? "it" : source}`,
    );
  }
  const hostField = `${name.toLowerCase()}:${port}`;
  const host = name.toLowerCase().replace(/^\[|\]$/g, "");
  return { url: `http://${hostField}`, address: { host, port }, hostField, isLocal: LOCAL_HOSTS.has(host), token };
}

/**
 * Returns the beginning of a text that should be a URL, without what may be a password or a token.
 *
 * @param {string} url
 */
function withoutSecrets(url) {
  if (url.startsWith("unix:")) return check.shown(url);
  const start = url.includes("://") ? url.indexOf("://") + 3 : 0;
  const rest = url.slice(url.lastIndexOf("@") >= start ? url.lastIndexOf("@") + 1 : start);
  const host = rest.split(/[/?#]/, 1)[0] ?? "";
  const user = url.lastIndexOf("@") >= start ? "***@" : "";
  // A port that is none may be a password.
  const shown = host.replace(/:[^0-9:\]][^:]*$/, ":***");
  return check.shown(`${url.slice(0, start)}${user}${shown}${host === rest ? "" : "/..."}`);
}
