// What changes while the page is open: mostly waits, so it runs beside the others.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Backend, SIZES } from "./backend.mjs";
import { accessible, backend, chromium, cut, open, row } from "./page.mjs";

const banner = (page, words) => page.waitForFunction((words) => document.querySelector("#switches").textContent === words, words);

test("stopped and exempt levels are a banner, and tags of their rows", async (t) => {
  const { page } = await open(t, SIZES.desktop);
  assert.ok(await page.locator("#switches").isHidden());
  await backend.run("stop", "--yes", "--resource", "gpt-4");
  await backend.run("exempt", "--entity", "user-3");
  await backend.run("stop", "--yes", "--entity", "user-3", "--resource", "gpt-4");
  await backend.run("exempt", "--entity", "user-2");
  try {
    await banner(page, "Stoppeduser-3 on gpt-4resource gpt-4Exemptentity user-2entity user-3");
    const tag = async (name) => {
      await page.locator("#filter").fill(name);
      return row(page, name).locator(".tag").textContent();
    };
    assert.deepEqual([await tag("user-1"), await tag("user-2")], ["stopped", "exempt"]);
    assert.equal(await tag("user-3"), "stopped", "the narrowest level decides");
    await page.locator("#filter").fill("");
    assert.equal(await page.locator("#count-note").textContent(), "23 stopped");
    assert.deepEqual(await cut(page), []);
    assert.deepEqual(await accessible(page), []);
    await page.locator("#switches a").first().click();
    await page.waitForFunction(() => document.querySelector("#stopped").textContent === "Stopped at entity user-3 on resource gpt-4: every acquire is refused.");
    assert.equal(new URL(page.url()).hash, "#entity/user-3/gpt-4");
    await page.getByText("weirgate start --entity user-3 --resource gpt-4").waitFor();
  } finally {
    for (const level of [["--resource", "gpt-4"], ["--entity", "user-3"], ["--entity", "user-3", "--resource", "gpt-4"], ["--entity", "user-2"]]) {
      await backend.run("start", ...level);
    }
  }
  await page.waitForFunction(() => document.querySelector("#switches").hidden);
});

test("a paused bucket says how long, in its row and by what ends it", async (t) => {
  const { page } = await open(t, SIZES.desktop);
  await backend.run("pause", "user-1", "gpt-4", "10m");
  try {
    await page.locator("#filter").fill("user-1");
    const tag = row(page, "user-1").locator(".tag");
    await page.waitForFunction(() => /^paused, (10m 0s|9m \d+s)$/.test(document.querySelector(".tag.paused")?.textContent));
    assert.deepEqual(await cut(page), []);
    assert.deepEqual(await accessible(page), []);
    await row(page, "user-1").locator("a").click();
    await page.getByText("weirgate resume user-1 gpt-4").waitFor();
    await backend.run("resume", "user-1", "gpt-4");
    await tag.waitFor({ state: "hidden" });
  } finally {
    await backend.run("resume", "user-1", "gpt-4");
  }
});

test("a plan's switch is in the banner, and no row has a tag that it may decide otherwise", async (t) => {
  const { page } = await open(t, SIZES.desktop);
  const tags = async (...users) => {
    const found = [];
    for (const user of users) {
      await page.locator("#filter").fill(user);
      found.push(await row(page, user).locator(".tag").textContent());
    }
    return found;
  };
  const levels = [["--plan", "pro"], ["--plan", "pro", "--resource", "gpu"], ["--resource", "gpt-4"], ["--entity", "user-2"]];
  try {
    await backend.run("exempt", "--plan", "pro");
    await backend.run("stop", "--yes", "--plan", "pro", "--resource", "gpu");
    await backend.run("exempt", "--entity", "user-2");
    await backend.run("stop", "--yes", "--resource", "gpt-4");
    await banner(page, "Stoppedplan pro on gpuresource gpt-4Exemptentity user-2plan pro");
    assert.deepEqual(await tags("user-1", "user-2", "user-6"), ["", "exempt", ""], "rows have no plan");
    await backend.run("start", "--plan", "pro");
    await banner(page, "Stoppedplan pro on gpuresource gpt-4Exemptentity user-2");
    assert.deepEqual(await tags("user-1", "user-2", "user-6"), ["stopped", "exempt", "stopped"], "gpu's has no part in it");
    await backend.run("stop", "--yes", "--plan", "pro");
    await banner(page, "Stoppedplan pro on gpuplan proresource gpt-4Exemptentity user-2");
    assert.deepEqual(await tags("user-1", "user-6"), ["stopped", "stopped"], "by both");
  } finally {
    for (const level of levels) await backend.run("start", ...level);
  }
  await page.waitForFunction(() => document.querySelector("#switches").hidden);
});

test("each read of an opened bucket that fails says why, whatever the other one answers", async (t) => {
  const { page } = await open(t, SIZES.desktop);
  const reason = { why: "the reasons cannot be read", hour: "the hour cannot be read" };
  const fail = (path) => page.route(`**/${path}?*`, (route) => route.fulfill({ status: 502, body: reason[path] }));
  const goTo = (user) => page.evaluate((user) => { location.hash = `#resource/gpt-4/${user}`; }, user);
  const answer = (path) => page.waitForResponse((response) => response.url().includes(`/${path}?`));
  const says = (words) => page.waitForFunction((words) => document.querySelector("#bucket-problem").textContent === words, words);
  await fail("why");
  await goTo("user-7");
  await says(reason.why);
  // When it reads the hour again, it has taken over the answer before.
  await answer("hour");
  await answer("hour");
  await says(reason.why);
  await fail("hour");
  await goTo("user-8");
  await says(`${reason.why}\n${reason.hour}`);
  await page.unroute("**/why?*");
  await goTo("user-9");
  await page.locator("#levels td").first().waitFor();
  await says(reason.hour);
  await page.unroute("**/hour?*");
  await says("");
  assert.ok(await page.locator("#bucket-problem").isHidden());
});

for (const [what, cause] of [
  ["a table that cannot be reached", (backend) => backend.stop()],
  ["a server that ended", (_, served) => served.stop()],
  ["a server that hangs", (_, served) => served.hang()],
]) {
  test(`with ${what} the page is not live: it says since when, dims what it has, and refills no balance`, async (t) => {
    const own = await Backend.start();
    t.after(() => own.stop());
    const served = await own.servePage();
    t.after(() => served.stop());
    // It refills for half a minute.
    await own.run("acquire", "user-1", "gpt-4", "tpm=50000");
    const context = await chromium.newContext({ viewport: { width: 1440, height: 900 } });
    t.after(() => context.close());
    const page = await context.newPage();
    await page.clock.install();
    await page.goto(`${served.url}#resource/gpt-4/user-1`);
    await page.waitForFunction(() => document.querySelector("#state").textContent === "Live" && document.querySelector("#limits .left"));
    // From then on no row changes, so nothing but reads says that it is live.
    await page.waitForFunction(() => document.querySelector("#granted").textContent === "0.0");
    const ink = () => row(page, "user-1").locator("a").evaluate((link) => getComputedStyle(link).color);
    const [live, words] = [await ink(), () => page.locator("#state").textContent()];
    await cause(own, served);
    // The page has no other sign of a server that hangs than that nothing comes.
    if (what.endsWith("hangs")) await page.clock.fastForward(30_000);
    await page.waitForFunction(() => document.querySelector(".stale"), null, { timeout: 120_000 });
    const since = await words();
    assert.match(since, /^Not read since \d\d:\d\d:\d\d UTC$/);
    const shown = () => page.locator("#rows .left, #limits .left, .facts dd").allTextContents();
    const before = await shown();
    assert.notEqual(await ink(), live);
    assert.equal(await row(page, "user-1").locator("xpath=ancestor::*[contains(@class, 'stale')]").count(), 1);
    await page.clock.fastForward(30_000);
    assert.deepEqual(await shown(), before);
    assert.equal(await words(), since);
    assert.deepEqual(await accessible(page), []);
    assert.deepEqual(await cut(page), []);
    if (!what.endsWith("hangs")) return;
    served.goOn();
    await page.waitForFunction(() => document.querySelector("#state").textContent === "Live" && !document.querySelector(".stale"));
  });
}

test("a page that has read nothing and reaches no server says so, and goes on when it answers", async (t) => {
  const context = await chromium.newContext();
  t.after(() => context.close());
  const page = await context.newPage();
  await page.route("**/events*", (route) => route.abort());
  await page.goto(backend.url);
  await page.waitForFunction(() => document.querySelector("#state").textContent === "Not connected");
  await page.getByText("The page's server does not answer. It ends with the command that started it.").waitFor();
  await page.unroute("**/events*");
  await page.waitForFunction(() => document.querySelector("#state").textContent === "Live" && document.querySelector("#problem").hidden);
});
