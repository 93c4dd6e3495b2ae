/** The real agent, on the local backend of `weirgate local`. `make clients` builds both. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

export const CONTRACT = fileURLToPath(new URL("../../contract/", import.meta.url));

/** `weirgate local` with the limits of the contract. */
export class Backend {
  static async start() {
    const backend = new Backend();
    backend.process = spawn(
      binary("WEIRGATE_BIN"),
      ["--json", "local", "--port", "0", "--limits", `${CONTRACT}limits.yaml`],
      { stdio: ["ignore", "pipe", "ignore"] },
    );
    let text = "";
    for await (const line of createInterface(backend.process.stdout)) {
      text += line;
      const value = parsed(text);
      if (value) {
        backend.variables = value.variables;
        backend.process.stdout.resume();
        return backend;
      }
    }
    throw new Error(`weirgate local ended before it was ready: ${text}`);
  }

  stop() {
    return stop(this.process);
  }
}

/** The agent, on a port that stays the same over restarts. */
export class Agent {
  #port = 0;
  #process;

  constructor(variables) {
    this.variables = variables;
  }

  static async start(variables) {
    const agent = new Agent(variables);
    await agent.#start();
    return agent;
  }

  get url() {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Returns the number of requests that the agent works on. */
  async inFlight() {
    const metrics = await (await fetch(`${this.url}/metrics`)).text();
    return Number(/^weirgate_agent_in_flight (\d+)/m.exec(metrics)[1]);
  }

  async restart() {
    await this.stop();
    await this.#start();
  }

  stop() {
    return stop(this.#process);
  }

  async #start() {
    this.#process = spawn(binary("WEIRGATE_AGENT_BIN"), ["--listen", `127.0.0.1:${this.#port}`], {
      stdio: ["ignore", "pipe", "inherit"],
      env: { ...process.env, ...this.variables },
    });
    for await (const line of createInterface(this.#process.stdout)) {
      const { message, address } = JSON.parse(line);
      if (message === "listening") {
        this.#port = Number(new URL(address).port);
        // So that the agent never waits for a reader of its log.
        this.#process.stdout.resume();
        return;
      }
    }
    throw new Error("the agent ended before it listened");
  }
}

/** Variables of a database that nothing serves. */
export const withoutDatabase = {
  WEIRGATE_TABLE: "weirgate",
  AWS_REGION: "us-east-1",
  AWS_ENDPOINT_URL_DYNAMODB: "http://127.0.0.1:1",
  AWS_ACCESS_KEY_ID: "local",
  AWS_SECRET_ACCESS_KEY: "local",
};

function binary(variable) {
  const path = process.env[variable];
  if (!path) throw new Error(`${variable} must be the path of a binary: run \`make clients\``);
  return path;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

async function stop(child) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.kill("SIGTERM");
  await ended;
}
