// The page in a real browser: three sizes, light and dark, operated by keyboard.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Backend, SIZES, browser, fill } from "./backend.mjs";

const axe = await readFile(fileURLToPath(import.meta.resolve("axe-core/axe.min.js")), "utf8");
let backend;
let chromium;

before(async () => {
  backend = await Backend.start();
  await fill(backend);
  chromium = await browser();
});

after(async () => {
  await chromium?.close();
  await backend?.stop();
});

// Opens the page. Fails the test for an error in the console, or a request to another place.
async function open(t, [width, height], options = {}, hash = "#resource/gpt-4") {
  // The checker is a script that the page's policy would refuse; `strict` keeps the policy.
  const { strict = false, ...others } = options;
  const context = await chromium.newContext({ viewport: { width, height }, bypassCSP: !strict, ...others });
  t.after(() => context.close());
  const page = await context.newPage();
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(error.message));
  page.on("console", (message) => message.type() === "error" && wrong.push(message.text()));
  page.on("request", (request) => request.url().startsWith(backend.url) || wrong.push(request.url()));
  await page.goto(backend.url + hash);
  // A slow machine shows the first buckets before the others are read.
  const isRead = (isWhole) => {
    const count = document.querySelector("#count").textContent;
    return isWhole ? count === "24" : count !== "–";
  };
  await page.waitForFunction(isRead, hash === "#resource/gpt-4");
  return { page, wrong };
}

const row = (page, name) => page.locator("#rows .row.first:not([hidden])", { has: page.getByText(name, { exact: true }) });

// Where everything is that holds numbers, or stands beside them.
const places = (page) =>
  page.evaluate(() => {
    const parts = document.querySelectorAll("[id], section, .row:not([hidden]), .row:not([hidden]) > span, dl div");
    const seen = [...parts].filter((part) => part.checkVisibility() && !part.closest("#top, #actions, #bars, #sum, #as-of, option, footer"));
    return seen.map((part) => {
      const { x, y, width, height } = part.getBoundingClientRect();
      return [part.id || part.tagName, x, y, width, height].join(" ");
    });
  });

// The narrowest window with two columns, and one that is a little narrower.
const WIDTHS = { ...SIZES, laptop: [1345, 840], small: [1280, 800] };

for (const [name, size] of Object.entries(WIDTHS)) {
  for (const colorScheme of ["light", "dark"]) {
    test(`${name}, ${colorScheme}: the checker finds nothing, nothing is cut off, nothing moves`, async (t) => {
      const { page, wrong } = await open(t, size, { colorScheme });
      await page.waitForFunction(() => document.querySelector("#top").childElementCount > 0);
      const before = await places(page);
      const granted = () => page.locator("#granted").textContent();
      const first = await granted();
      await page.waitForFunction((first) => document.querySelector("#granted").textContent !== first, first);
      await page.waitForTimeout(2000);
      assert.deepEqual(await places(page), before, "changing numbers move something");
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `the page is ${over} px too wide`);
      const cut = await page.evaluate(() => {
        // On narrow windows some are there for screen readers alone.
        const isSeen = (cell) => cell.checkVisibility() && getComputedStyle(cell).clipPath === "none";
        const cells = [...document.querySelectorAll("#rows .row:not([hidden]) > span")].filter(isSeen);
        const right = (one) => one.getBoundingClientRect().right;
        return cells.filter((cell) => right(cell) > right(cell.closest("section")) + 1).map((cell) => cell.className);
      });
      assert.deepEqual(cut, [], "columns are cut off");
      await page.evaluate(axe);
      const found = await page.evaluate(async () => (await window.axe.run()).violations);
      assert.deepEqual(found.map((one) => `${one.id}: ${one.nodes.map((node) => node.html)}`), []);
      assert.deepEqual(wrong, []);
    });
  }
}

test("it keeps its own policy: no script, style, font or picture of another place", async (t) => {
  const { page, wrong } = await open(t, SIZES.desktop, { strict: true });
  await page.waitForTimeout(1000);
  assert.deepEqual(wrong, []);
});

test("balances, shards, leases and rates are those of the table", async (t) => {
  const { page } = await open(t, SIZES.desktop);
  assert.equal(await row(page, "user-1").locator(".shards").textContent(), "4");
  // 12 acquires a second against a refill of 10 a second, measured over seconds.
  await page.locator("#filter").fill("user-2");
  await page.waitForFunction(() => {
    const rows = [...document.querySelectorAll("#rows .row.first:not([hidden])")];
    const row = rows.find((row) => row.querySelector("a").textContent === "user-2");
    const rate = Number(row?.querySelector(".granted").textContent);
    return rate > 8 && rate < 16;
  });
  await page.locator("#filter").fill("");
  await page.locator("#links a", { hasText: "gpu" }).click();
  await row(page, "render-2").waitFor();
  assert.equal(await row(page, "render-2").locator(".left").textContent(), "3 / 8");
  assert.match(await row(page, "render-3").getAttribute("class"), /out/);
  const peek = JSON.parse(await backend.run("peek", "render-2", "gpu", "--json"));
  assert.equal(peek.limits[0].available_tokens, 3);
});

test("usage is that of the report, and the functions' last actions are shown", async (t) => {
  const { page } = await open(t, SIZES.desktop, {}, "#resource/gpu");
  await page.waitForFunction(() => document.querySelector("#sum").textContent.startsWith("4 acquires"));
  await page.locator("#measure").selectOption("slots");
  assert.match(await page.locator("#sum").textContent(), /^16 tokens of slots/);
  assert.equal(await page.locator("#top li").first().locator("a").textContent(), "render-3");
  await page.getByText("lease released").first().waitFor();
  assert.match(await page.locator("#actions").textContent(), /aggregator/);
});

test("everything can be done by keyboard", async (t) => {
  const { page } = await open(t, SIZES.desktop);
  const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.textContent);
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Skip to the buckets");
  await page.keyboard.press("Enter");
  assert.equal(await focused(), "buckets");
  await page.keyboard.press("Enter");
  assert.equal(await focused(), "user-1");
  await page.keyboard.press("ArrowDown");
  assert.equal(await focused(), "user-10");
  for (let step = 0; step < 22; step++) await page.keyboard.press("ArrowDown");
  assert.equal(await focused(), "user-9", "the last one, far below");
  await page.keyboard.press("ArrowDown");
  assert.equal(await focused(), "user-9");
  await page.keyboard.press("/");
  await page.keyboard.type("USER-2");
  await page.waitForFunction(() => document.querySelectorAll("#rows .row.first:not([hidden])").length === 6);
  await page.locator("#order").focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  await page.waitForFunction(() => document.querySelector("#rows .row.first:not([hidden]) a").textContent === "user-2");
  await page.locator("#filter").fill("nothing like it");
  assert.equal(await page.locator("#none").textContent(), "No bucket has such a name.");
  await page.locator("input[value=resource]").focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Control+A");
  await page.keyboard.type("user-1");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#buckets-title").textContent === "Buckets of user-1");
  assert.equal(new URL(page.url()).hash, "#entity/user-1");
  await page.goBack();
  await page.waitForFunction(() => document.querySelector("#buckets-title").textContent === "Buckets of gpt-4");
});

test("what does not exist and what is not allowed is said", async (t) => {
  const { page } = await open(t, SIZES.phone, {}, "#entity/no-one");
  await page.getByText("This entity has no buckets. A bucket begins with its first acquire.").waitFor();
  await page.goto(`${backend.url}#resource/a%23b`);
  await page.waitForFunction(() => !document.querySelector("#problem").hidden);
  assert.match(await page.locator("#problem").textContent(), /a#b/);
});

test("a page whose server ended says so", async (t) => {
  const own = await Backend.start();
  t.after(() => own.stop());
  const context = await chromium.newContext();
  t.after(() => context.close());
  const page = await context.newPage();
  await page.goto(own.url);
  await page.waitForFunction(() => document.querySelector("#state").textContent === "Live");
  await own.stop();
  await page.waitForFunction(() => document.querySelector("#state").textContent === "Not connected");
});
