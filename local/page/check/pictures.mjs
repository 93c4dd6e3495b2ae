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
  chromium = await browser();
  for (const [name, colorScheme] of [["desktop", "light"], ["desktop", "dark"], ["phone", "light"], ["phone", "dark"]]) {
    const [width, height] = SIZES[name];
    const context = await chromium.newContext({ viewport: { width, height }, colorScheme });
    const page = await context.newPage();
    await page.goto(`${backend.url}#resource/gpt-4`);
    await page.locator("#order").selectOption("left");
    // Long enough for rates, usage, and a run of the reconciler.
    await page.waitForFunction(() => document.querySelector("#actions").textContent.includes("lease released"));
    await page.waitForFunction(() => document.querySelector("#granted").textContent !== "–");
    const path = `${folder}/page-${name}-${colorScheme}.png`;
    await page.screenshot({ path });
    console.log(path);
    await context.close();
  }
} finally {
  await chromium?.close();
  await backend.stop();
}
