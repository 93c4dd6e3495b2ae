// Measures the page: first paint, bytes, and the server's part of a core with 1,000 buckets in use.
import { readFile } from "node:fs/promises";
import { Backend, SIZES, browser } from "./backend.mjs";

const BUCKETS = 1000;
const RUNS = 9;
const SECONDS = 20;
const TICKS_PER_SECOND = 100;

const median = (numbers) => numbers.toSorted((one, other) => one - other)[Math.floor(numbers.length / 2)];

// Time that a process has computed, in seconds: fields 14 and 15 of its line, after its name.
async function computed(pid) {
  const line = await readFile(`/proc/${pid}/stat`, "utf8");
  const fields = line.slice(line.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND;
}

async function share(pid) {
  const before = await computed(pid);
  await new Promise((resolve) => setTimeout(resolve, SECONDS * 1000));
  return ((await computed(pid)) - before) / SECONDS;
}

const backend = await Backend.start();
let chromium;
try {
  chromium = await browser();
  const entities = Array.from({ length: BUCKETS }, (_, number) => `user-${number}`);
  for (let from = 0; from < BUCKETS; from += 20) {
    await Promise.all(entities.slice(from, from + 20).map((entity) => backend.run("acquire", entity, "gpt-4", "rpm=1")));
  }
  const idle = await share(backend.process.pid);

  const [paints, sizes] = [[], []];
  for (let run = 0; run < RUNS; run++) {
    const [width, height] = SIZES.desktop;
    const context = await chromium.newContext({ viewport: { width, height } });
    const page = await context.newPage();
    let bytes = 0;
    page.on("response", async (response) => {
      if (!response.url().includes("/events")) bytes += (await response.body()).length;
    });
    await page.goto(`${backend.url}#resource/gpt-4`);
    await page.waitForTimeout(500);
    paints.push(await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
    sizes.push(bytes);
    await context.close();
  }
  console.log(`first paint          ${Math.round(median(paints))} ms (median of ${RUNS})`);
  console.log(`files                ${(Math.max(...sizes) / 1024).toFixed(1)} KB`);

  const context = await chromium.newContext();
  const page = await context.newPage();
  await page.goto(`${backend.url}#resource/gpt-4`);
  await page.waitForFunction((buckets) => document.querySelector("#count").textContent === buckets, BUCKETS.toLocaleString("en"));
  const watched = await share(backend.process.pid);
  const cost = await page.locator("#cost").textContent();
  console.log(`${BUCKETS} buckets, unseen  ${(idle * 100).toFixed(1)} % of a core`);
  console.log(`${BUCKETS} buckets, live    ${(watched * 100).toFixed(1)} % of a core, database included`);
  console.log(cost);
} finally {
  await chromium?.close();
  await backend.stop();
}
