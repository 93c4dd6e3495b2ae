// A backend on this machine with callers, and a browser for its page.
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { chromium } from "playwright-core";

const limits = fileURLToPath(new URL("limits.yaml", import.meta.url));
const weirgate = process.env.WEIRGATE;
if (!weirgate) throw new Error("WEIRGATE must be the path of the binary: run make page-check");

// Widths at which columns were cut once, and the narrowest with two columns.
export const EDGES = { a: [1250, 800], b: [1270, 800], c: [1280, 800], d: [1290, 800], e: [1366, 768], f: [1440, 900], g: [1441, 900] };
export const SIZES = { phone: [390, 844], tablet: [820, 1180], desktop: [1440, 900] };

// A port that is free now.
async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

// Starts a server of the page: the process, and what its first line says.
async function serve(arguments_, env = process.env) {
  const child = spawn(weirgate, arguments_, { env, stdio: ["ignore", "pipe", "inherit"] });
  const [line] = await once(createInterface({ input: child.stdout }), "line");
  return { child, started: JSON.parse(line) };
}

async function end(child, signal) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill(signal);
  await once(child, "exit");
}

// Starts `weirgate local`; everything that callers do goes through the command line, or an agent.
export class Backend {
  static async start(...options) {
    const backend = new Backend();
    const ports = ["--port", "0", "--page-port", "0"];
    const { child, started } = await serve(["local", ...ports, "--json", "--limits", limits, ...options]);
    backend.process = child;
    backend.url = started.page_url;
    backend.environment = { ...process.env, ...started.variables };
    backend.endpoint = started.endpoint_url;
    backend.table = started.table;
    backend.loads = [];
    return backend;
  }

  // Serves the page of this table from a process of its own, which the end of the backend leaves without its table.
  async servePage() {
    const { child, started } = await serve(["page", "--port", "0", "--read-units", "500", "--json"], this.environment);
    return {
      url: started.page_url,
      hang: () => child.kill("SIGSTOP"),
      goOn: () => child.kill("SIGCONT"),
      // A process that hangs ends by nothing else.
      stop: () => end(child, "SIGKILL"),
    };
  }

  // The same, with an agent whose metrics the page reads.
  static async startWithAgent() {
    const address = `127.0.0.1:${await freePort()}`;
    const backend = await Backend.start("--metrics", `http://${address}/metrics`);
    backend.agent = address;
    const program = join(dirname(weirgate), "weirgate-agent");
    const agent = spawn(program, ["--listen", address], { env: backend.environment, stdio: "ignore" });
    backend.loads.push(agent);
    for (let tries = 0; ; tries++) {
      const answer = await fetch(`http://${address}/healthz`).catch(() => null);
      if (answer?.ok) return backend;
      if (tries > 600 || agent.exitCode !== null) throw new Error("the agent does not answer: run make page-check");
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  // Asks the agent for a slot that all are held of. Returns whether it was denied.
  async ask(entity) {
    const body = JSON.stringify({ entity, resource: "gpu", take: { slots: 1 }, lease_ms: 1000 });
    const answer = await fetch(`http://${this.agent}/v1/acquire`, { method: "POST", body });
    return answer.status === 429;
  }

  // Writes copies of a bucket's item for other entities, with the keys that the table gives them.
  async copies(entity, resource, names) {
    const call = async (operation, request) => {
      const answer = await fetch(this.endpoint, {
        method: "POST",
        headers: { "content-type": "application/x-amz-json-1.0", "x-amz-target": `DynamoDB_20120810.${operation}` },
        body: JSON.stringify(request),
      });
      if (!answer.ok) throw new Error(await answer.text());
      return answer.json();
    };
    const { table } = this;
    const key = (name) => ({ S: `default/BUCKET#${name}#${resource}#0` });
    const { Item } = await call("GetItem", { TableName: table, Key: { PK: key(entity), SK: { S: "#STATE" } } });
    // FNV-1a, as `BucketKey::by_resource` spreads a resource's buckets over 16 partitions.
    const spread = (name) => {
      let hash = 0x811c9dc5;
      for (const byte of Buffer.from(name)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
      return String(hash % 16).padStart(2, "0");
    };
    for (let from = 0; from < names.length; from += 25) {
      const puts = names.slice(from, from + 25).map((name) => ({
        PutRequest: {
          Item: {
            ...Item,
            PK: key(name),
            GSI2PK: { S: `default/RESOURCE#${resource}#${spread(name)}` },
            GSI2SK: { S: `BUCKET#${name}#0` },
            GSI3PK: { S: `default/ENTITY#${name}` },
            GSI3SK: { S: `BUCKET#${resource}#0` },
          },
        },
      }));
      await call("BatchWriteItem", { RequestItems: { [table]: puts } });
    }
  }

  async run(...arguments_) {
    const { stdout } = await promisify(execFile)(weirgate, arguments_, { env: this.environment });
    return stdout;
  }

  // Acquires at a steady rate until the backend stops.
  load(entity, rate) {
    const arguments_ = ["load", entity, "gpt-4", "rpm=1", "--rate", String(rate), "--for", "1h"];
    this.loads.push(spawn(weirgate, arguments_, { env: this.environment, stdio: "ignore" }));
  }

  async stop() {
    for (const child of [...this.loads, this.process]) await end(child, "SIGTERM");
  }
}

export async function browser() {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  // Without a sandbox, as containers have none of their own. The only page is ours.
  return chromium.launch({ executablePath, args: ["--no-sandbox"] });
}

// Callers of all kinds: busy ones, one that has used up its limit, a split bucket, leases.
export async function fill(backend) {
  for (let user = 1; user <= 24; user++) {
    await backend.run("acquire", `user-${user}`, "gpt-4", "rpm=1", `tpm=${user * 4000}`);
  }
  await backend.run("split", "user-1", "gpt-4", "--shards", "4");
  for (const [holder, slots] of [["render-1", 2], ["render-2", 5], ["render-3", 8]]) {
    await backend.run("acquire", holder, "gpu", `slots=${slots}`, "--lease", "1h");
  }
  await backend.run("acquire", "render-4", "gpu", "slots=1", "--lease", "1s");
  await backend.run("entities", "set", "user-4", "--parent", "user-24", "--cascades");
  // One of them is among the first rows.
  for (const user of ["user-5", "user-10"]) {
    await backend.run("limits", "set", "--entity", user, "--resource", "gpt-4", "rpm=300/minute", "tpm=50_000/minute");
  }
  await backend.run("limits", "set", "--plan", "pro", "--resource", "gpt-4", "rpm=900/minute", "tpm=150_000/minute");
  await backend.run("entities", "set", "user-6", "--plan", "pro");
  await backend.run("acquire", "user-4", "gpt-4", "rpm=1");
  for (const user of ["user-5", "user-6", "user-10"]) await backend.run("acquire", user, "gpt-4", "rpm=1");
  for (const [user, rate] of [["user-1", 30], ["user-2", 12], ["user-3", 15]]) backend.load(user, rate);
}
