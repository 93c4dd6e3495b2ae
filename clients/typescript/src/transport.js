/**
 * Connections, and which failures leave nothing applied.
 *
 * A request is sent at most once. It is surely not applied if no connection was made. Once it may have been written,
 * its outcome is unknown until the answer.
 */

import http from "node:http";

import { tokenOf } from "./endpoint.js";
import { hiding } from "./secret.js";

/** Nothing of the request left this process. */
export class NotSent extends Error {}

/** The request was sent, and no whole answer came. */
export class Lost extends Error {}

/** @typedef {(answered: Promise<Response | undefined>) => unknown} TakeBack */
/**
 * @typedef {object} Response
 * @property {number} status
 * @property {import("node:http").IncomingHttpHeaders} headers
 * @property {Buffer} body
 * @property {import("./secret.js").Hide} hide Returns what may be shown of a part of the answer.
 */

const MAX_HEAD = 64 * 1024;
/** Interim answers, of which the agent sends none. */
const MAX_INTERIM = 1_000;
/** Bytes of a body. A grant has up to 2 MiB, and each of its limits 300 bytes. */
const MAX_BODY = 8 * 1024 * 1024;
/** Time for the answer to a request that was given up. The agent needs a moment to see it. */
const GRACE_MS = 5_000;

export class Transport {
  #endpoint;
  #agent;

  /**
   * @param {import("./endpoint.js").Endpoint} endpoint
   * @param {number} maxIdle
   */
  constructor(endpoint, maxIdle) {
    this.#endpoint = endpoint;
    // No limit of connections in use: a request that waits for slots must not keep back the one that releases them. All
    // addresses of a name are tried, which Node 18 does not do by itself.
    const options = { keepAlive: maxIdle > 0, maxFreeSockets: maxIdle || 1, noDelay: true, autoSelectFamily: true };
    this.#agent = new http.Agent(options);
  }

  /**
   * Sends a request and returns the answer. If the signal gives it up after it was sent, `takeBack` gets the answer that
   * still comes, or undefined.
   *
   * @param {string} path
   * @param {string} body
   * @param {number} timeoutMs
   * @param {AbortSignal | undefined} signal
   * @param {TakeBack | undefined} takeBack
   * @returns {Promise<Response>}
   */
  async exchange(path, body, timeoutMs, signal, takeBack) {
    await this.#dropEnded();
    signal?.throwIfAborted();
    return this.#send(path, body, timeoutMs, signal, takeBack);
  }

  /** Closes the idle connections. */
  closeIdle() {
    for (const socket of this.#idle()) socket.destroy();
  }

  /** Closes all connections. */
  close() {
    this.#agent.destroy();
  }

  #idle() {
    return Object.values(this.#agent.freeSockets).flatMap((sockets) => sockets ?? []);
  }

  /**
   * Closes connections that the agent has ended. Their end is seen only when the event loop turns, so it turns twice:
   * to the end of this turn's events, and through the next one's.
   */
  async #dropEnded() {
    const idle = this.#idle();
    if (idle.length === 0) return;
    await turn();
    await turn();
    for (const socket of idle) {
      // Bytes that came since are an answer to nothing.
      if (socket.readableEnded || !socket.writable || socket.readableLength > 0) socket.destroy();
    }
  }

  /**
   * @param {string} path
   * @param {string} body
   * @param {number} timeoutMs
   * @param {AbortSignal | undefined} signal
   * @param {TakeBack | undefined} takeBack
   * @returns {Promise<Response>}
   */
  #send(path, body, timeoutMs, signal, takeBack) {
    const { address, hostField, url } = this.#endpoint;
    const token = tokenOf(this.#endpoint);
    return new Promise((resolve, reject) => {
      /** @type {Record<string, string | number>} */
      const headers = {
        host: hostField,
        "content-type": "application/json",
        "content-length": Buffer.byteLength(body),
      };
      if (token) headers["x-weirgate-token"] = token;
      const options = { ...address, agent: this.#agent, method: "POST", path, headers, maxHeaderSize: MAX_HEAD };
      const request = http.request(options);
      let interim = 0;
      let hasEnded = false;
      let isConnected = false;
      /** @type {(answer?: Response) => void} */
      let answerLate = () => {};
      let timer = setTimeout(() => request.destroy(new Error("timed out")), timeoutMs);
      const abort = () => {
        if (!takeBack || !isConnected) return request.destroy(new Error("aborted"));
        // Tells the agent that nothing waits for the answer. One that is on its way can still be read.
        takeBack(new Promise((resolve) => (answerLate = resolve)));
        request.socket?.end();
        clearTimeout(timer);
        timer = setTimeout(() => request.destroy(), GRACE_MS);
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", abort, { once: true });
      const stop = () => {
        hasEnded = true;
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
      };
      /** @param {Error} error */
      const fail = (error) => {
        stop();
        answerLate();
        // Bytes of an answer that cannot be read. They may repeat the request with its token.
        if ("rawPacket" in error) delete error.rawPacket;
        if (signal?.aborted) reject(signal.reason);
        else if (isConnected) reject(new Lost(`no answer of the agent at ${url}: ${error.message}`, { cause: error }));
        else reject(new NotSent(`no connection to the agent at ${url}: ${reason(error)}; ${REMEDY}`, { cause: error }));
      };
      request.once("socket", (socket) => {
        if (socket.connecting) socket.once("connect", () => (isConnected = true));
        else isConnected = true;
      });
      request.on("error", fail);
      // Such as after an answer that switches to another protocol.
      request.once("close", () => {
        if (!hasEnded) fail(new Error("the connection ended without an answer"));
      });
      request.on("information", () => {
        interim += 1;
        if (interim > MAX_INTERIM) request.destroy(new Error(`more than ${MAX_INTERIM} interim answers came`));
      });
      request.once("response", (response) => {
        /** @type {Buffer[]} */
        const chunks = [];
        let length = 0;
        response.on("data", (/** @type {Buffer} */ chunk) => {
          chunks.push(chunk);
          length += chunk.length;
          if (length > MAX_BODY) request.destroy(new Error(`the answer is longer than ${MAX_BODY} bytes`));
        });
        response.on("error", fail);
        response.once("end", () => {
          if (!response.complete) return fail(new Error("the answer ended early"));
          stop();
          const status = response.statusCode ?? 0;
          const body = chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks);
          const answer = { status, headers: response.headers, body, hide: hiding(token ?? "") };
          answerLate(answer);
          resolve(answer);
        });
      });
      request.end(body);
    });
  }
}

const REMEDY = "start weirgate-agent, or set WEIRGATE_AGENT_URL";

/** @param {Error & { errors?: Error[] }} error */
function reason(error) {
  // Several addresses of a name have an error each, and no message together.
  return error.message || error.errors?.map((one) => one.message).join(", ") || error.name;
}

/** @returns {Promise<void>} */
function turn() {
  return new Promise((resolve) => setImmediate(resolve));
}
