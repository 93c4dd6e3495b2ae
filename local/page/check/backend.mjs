// A backend on this machine with callers, and a browser for its page.
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { chromium } from "playwright-core";

const limits = fileURLToPath(new URL("limits.yaml", import.meta.url));
const weirgate = process.env.WEIRGATE;
if (!weirgate) throw new Error("WEIRGATE must be the path of the binary: run make page-check");

export const SIZES = { phone: [390, 844], tablet: [820, 1180], desktop: [1440, 900] };

// Starts `weirgate local`; everything that callers do goes through the command line.
export class Backend {
  static async start() {
    const backend = new Backend();
    const ports = ["--port", "0", "--page-port", "0"];
    backend.process = spawn(weirgate, ["local", ...ports, "--json", "--limits", limits], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const lines = createInterface({ input: backend.process.stdout });
    const [line] = await once(lines, "line");
    const started = JSON.parse(line);
    backend.url = started.page_url;
    backend.environment = { ...process.env, ...started.variables };
    backend.loads = [];
    return backend;
  }

  async run(...arguments_) {
    const { stdout } = await promisify(execFile)(weirgate, arguments_, { env: this.environment });
    return stdout;
  }

  // Acquires at a steady rate until the backend stops.
  load(entity, rate) {
    const arguments_ = ["load", entity, "gpt-4", "rpm=1", "--rate", String(rate), "--for", "10m"];
    this.loads.push(spawn(weirgate, arguments_, { env: this.environment, stdio: "ignore" }));
  }

  async stop() {
    for (const child of [...this.loads, this.process]) {
      if (child.exitCode !== null) continue;
      child.kill("SIGTERM");
      await once(child, "exit");
    }
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
    await backend.run("acquire", holder, "gpu", `slots=${slots}`, "--lease", "10m");
  }
  await backend.run("acquire", "render-4", "gpu", "slots=1", "--lease", "1s");
  for (const [user, rate] of [["user-1", 30], ["user-2", 12], ["user-3", 15]]) backend.load(user, rate);
}
