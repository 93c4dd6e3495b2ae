// Takes the pictures of the README: node pictures.mjs FOLDER
import { mkdir } from "node:fs/promises";
import { Backend, SIZES, browser, fill } from "./backend.mjs";

const [folder] = process.argv.slice(2);
if (!folder) throw new Error("give the folder of the pictures");
await mkdir(folder, { recursive: true });
const backend = await Backend.startWithAgent();
let chromium;
try {
  await fill(backend);
  // Denied all the time, as a batch that is too large.
  const asking = setInterval(() => backend.ask("render-3").catch(() => clearInterval(asking)), 300);
  chromium = await browser();
  for (const [name, colorScheme] of [["desktop", "light"], ["desktop", "dark"], ["phone", "light"], ["phone", "dark"]]) {
    const [width, height] = SIZES[name];
    const context = await chromium.newContext({ viewport: { width, height }, colorScheme });
    const page = await context.newPage();
    await page.goto(`${backend.url}#resource/gpt-4`);
    await page.locator("#order").selectOption("saturation");
    // Long enough for rates, usage, and a run of the reconciler.
    await page.waitForFunction(() => document.querySelector("#actions").textContent.includes("lease released"));
    await page.waitForFunction(() => {
      const text = (id) => document.querySelector(id).textContent;
      const isRead = text("#count") === "24" && text("#denied") !== "–" && document.querySelector("#top").childElementCount > 0;
      const levels = [...document.querySelectorAll("#rows .row:not([hidden]) .from")];
      return isRead && Number(text("#saturated")) >= 3 && levels.every((cell) => cell.textContent !== "–");
    }, null, { timeout: 120_000 });
    const path = `${folder}/page-${name}-${colorScheme}.png`;
    await page.screenshot({ path });
    console.log(path);
    await context.close();
  }
  clearInterval(asking);
} finally {
  await chromium?.close();
  await backend.stop();
}
