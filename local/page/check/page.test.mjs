// Three sizes, light and dark, operated by keyboard.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Backend, EDGES, SIZES } from "./backend.mjs";
import { accessible, backend, chromium, cut, open, places, row } from "./page.mjs";

for (const [name, size] of Object.entries(SIZES)) {
  for (const colorScheme of ["light", "dark"]) {
    test(`${name}, ${colorScheme}: the checker finds nothing, nothing is cut off, nothing moves`, async (t) => {
      const { page, wrong } = await open(t, size, { colorScheme });
      await page.waitForFunction(() => document.querySelector("#top").childElementCount > 0);
      const known = () => document.querySelector("#saturated").textContent !== "–" && document.querySelector("#denied").textContent !== "–";
      await page.waitForFunction(known);
      const before = await places(page);
      const granted = () => page.locator("#granted").textContent();
      const first = await granted();
      await page.waitForFunction((first) => document.querySelector("#granted").textContent !== first, first);
      await page.waitForTimeout(2000);
      assert.deepEqual(await places(page), before, "changing numbers move something");
      assert.deepEqual(await cut(page), []);
      assert.deepEqual(await accessible(page), []);
      assert.deepEqual(wrong, []);
    });

    test(`${name}, ${colorScheme}: an opened bucket has no fault either`, async (t) => {
      const { page, wrong } = await open(t, size, { colorScheme }, "#resource/gpt-4/user-4", false);
      await page.waitForFunction(() => document.querySelectorAll("#bucket rect").length > 0);
      await page.locator("#changes td").first().waitFor();
      assert.deepEqual(await cut(page), []);
      assert.deepEqual(await accessible(page), []);
      assert.deepEqual(wrong, []);
    });
  }
}

test("no column is cut off at any width around those where the layout changes", async (t) => {
  for (const hash of ["#resource/gpt-4", "#resource/gpt-4/user-4"]) {
    const { page } = await open(t, SIZES.desktop, {}, hash, hash === "#resource/gpt-4");
    await page.waitForFunction(() => document.querySelector("#saturated").textContent !== "–");
    if (hash.endsWith("user-4")) await page.locator("#changes td").first().waitFor();
    for (const [width, height] of Object.values(EDGES)) {
      await page.setViewportSize({ width, height });
      await page.waitForTimeout(100);
      assert.deepEqual(await cut(page), [], `${width} px, ${hash}`);
    }
  }
});

test("names of the greatest length cut nothing off, in the list and in an opened bucket", async (t) => {
  const [entity, parent] = ["e", "p"].map((letter) => letter.repeat(256));
  const [resource, limit, plan] = [64, 64, 64].map((length, index) => "rlq"[index].repeat(length));
  await backend.run("limits", "set", "--plan", plan, "--resource", resource, `${limit}=600/minute`);
  await backend.run("limits", "set", "--entity", parent, "--resource", resource, "slots=8");
  await backend.run("entities", "set", entity, "--plan", plan, "--parent", parent, "--cascades");
  await backend.run("acquire", parent, resource, "slots=1", "--lease", "10m");
  await backend.run("acquire", entity, resource, `${limit}=1`);
  for (const hash of [`#resource/${resource}`, `#entity/${entity}`, `#resource/${resource}/${entity}`, `#entity/${parent}/${resource}`]) {
    const { page, wrong } = await open(t, SIZES.phone, {}, hash);
    if (hash.split("/").length > 2) await page.locator("#changes td").first().waitFor();
    for (const [width, height] of [...Object.values(SIZES), ...Object.values(EDGES)]) {
      await page.setViewportSize({ width, height });
      await page.waitForTimeout(100);
      assert.deepEqual(await cut(page), [], `${width} px, ${hash.slice(0, 20)}`);
    }
    // The field takes each of them whole.
    assert.equal(await page.locator("#name").evaluate((field) => field.maxLength), 256);
    assert.deepEqual(wrong, []);
  }
});

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

test("saturation and the level of each limit are in the rows", async (t) => {
  const { page } = await open(t, SIZES.desktop);
  // Both bring more than the refill, so they use as much as it is.
  await page.locator("#order").selectOption("saturation");
  await page.waitForFunction(() => {
    const cells = [...document.querySelectorAll("#rows .row:not([hidden]) .saturation.full")];
    return cells.length >= 2 && cells.every((cell) => parseInt(cell.textContent) >= 95);
  });
  assert.match(await page.locator("#saturated").textContent(), /^[1-9]/);
  await page.locator("#order").selectOption("name");
  const source = (name) => row(page, name).locator(".from");
  await page.waitForFunction(() => [...document.querySelectorAll("#rows .row:not([hidden]) .from")].every((cell) => cell.textContent !== "–"));
  assert.equal(await source("user-1").textContent(), "resource");
  assert.equal(await source("user-1").getAttribute("title"), "resource gpt-4");
  await page.locator("#filter").fill("user-5");
  assert.equal(await source("user-5").textContent(), "this bucket");
  await page.locator("#filter").fill("user-6");
  assert.equal(await source("user-6").textContent(), "plan");
  assert.equal(await source("user-6").getAttribute("title"), "plan of user-6 on gpt-4");
  await page.locator("#filter").fill("");
  await page.locator("#links a", { hasText: "gpu" }).click();
  await row(page, "render-3").waitFor();
  assert.equal(await row(page, "render-3").locator(".saturation").textContent(), "100%");
  assert.equal(await row(page, "render-2").locator(".saturation").textContent(), "63%");
  await backend.run("acquire", "user-30", "search", "rpm=1", "--limit", "rpm=10/minute");
  await page.goto(`${backend.url}#entity/user-30`);
  await row(page, "search").waitFor();
  await page.waitForFunction(() => document.querySelector("#rows .row.first:not([hidden]) .from").textContent === "caller");
});

test("a quota's row says what is left of it, and when it resets on the clock of its zone", async (t) => {
  const quota = "tpm=quota:10000/year,month=1,day=15,at=09:00,tz=Europe/Berlin";
  await backend.run("acquire", "user-31", "report", "tpm=3880", "--limit", quota);
  const { page, wrong } = await open(t, SIZES.desktop, {}, "#entity/user-31", false);
  const report = row(page, "report");
  await report.waitFor();
  assert.equal(await report.locator(".left").textContent(), "6,120 / 10,000");
  assert.equal(await report.locator(".refill").textContent(), "15 Jan 09:00");
  assert.equal(await report.locator(".refill").getAttribute("title"), "resets on 15 Jan 09:00 (Berlin)");
  assert.deepEqual(await cut(page), []);
  assert.deepEqual(wrong, []);
});

test("the chart of an opened bucket says the end of the window that there is now", async (t) => {
  await backend.run("acquire", "user-32", "report", "tpm=1", "--limit", "tpm=quota:100/hour");
  const { page } = await open(t, SIZES.desktop, {}, "#entity/user-32", false);
  let end = "13:00";
  await page.route("**/why?*", async (route) => {
    const why = await (await route.fetch()).json();
    for (const limit of why.limits) limit.resets = `resets on ${end}`;
    await route.fulfill({ json: why });
  });
  await page.clock.install();
  await row(page, "report").locator(".left").click();
  const chart = (end) => page.locator(`#limits svg[aria-label*="resets on ${end}"]`);
  await chart("13:00").waitFor();
  end = "14:00";
  await page.clock.runFor(31000);
  await chart("14:00").waitFor();
  assert.equal(await page.locator("#limits .plot .line").textContent(), "resets on 14:00");
});

test("denials are those of the agent, with its address", async (t) => {
  const { page } = await open(t, SIZES.desktop);
  for (let asked = 0; asked < 20; asked++) assert.ok(await backend.ask("render-3"), "all slots are held");
  await page.waitForFunction(() => parseFloat(document.querySelector("#denied").textContent) > 0);
  assert.equal(await page.locator("#denied-note").textContent(), `in all, by ${backend.agent}`);
  const metrics = await (await fetch(`http://${backend.agent}/metrics`)).text();
  const [, denied] = /^weirgate_denied_total (\d+)/m.exec(metrics);
  const says = `${backend.agent}: ${denied} denied since it began`;
  await page.waitForFunction((says) => document.querySelector("#denied-note").title === says, says);
});

test("an opened bucket has the levels of its plan", async (t) => {
  const { page } = await open(t, SIZES.desktop, {}, "#resource/gpt-4/user-6", false);
  await page.locator("#levels td").first().waitFor();
  const levels = await page.locator("#levels td:first-child").allTextContents();
  const own = ["entity user-6 on resource gpt-4", "entity user-6", "plan pro on resource gpt-4, in force", "plan pro"];
  assert.deepEqual(levels, [...own, "resource gpt-4", "system"]);
  assert.equal(await page.locator("#limits td.from").first().textContent(), "plan pro on resource gpt-4");
});

test("an opened bucket says what why says, and its last hour", async (t) => {
  const { page } = await open(t, SIZES.desktop);
  await page.locator("#filter").fill("user-2");
  // The command's own answer would be of another instant.
  const [answer] = await Promise.all([page.waitForResponse("**/why?*"), row(page, "user-2").locator(".left").click()]);
  assert.equal(new URL(page.url()).hash, "#resource/gpt-4/user-2");
  const why = await answer.json();
  const idle = await (await fetch(`${backend.url}why?entity=user-9&resource=gpt-4`)).json();
  const said = JSON.parse(await backend.run("why", "user-9", "gpt-4", "--json"));
  assert.deepEqual([idle.levels, idle.next], [said.levels, said.next]);
  await page.locator("#changes td").first().waitFor();
  assert.equal(await page.locator("#bucket-title").textContent(), "user-2 on gpt-4");
  const names = await page.locator("#limits .name").allTextContents();
  assert.deepEqual(names, why.limits.map((limit) => limit.limit));
  assert.equal(await page.locator("#limits td.from").first().textContent(), "resource gpt-4");
  assert.deepEqual(await page.locator("#next code").allTextContents(), why.next.map((next) => next.command));
  const levels = await page.locator("#levels td:first-child").allTextContents();
  assert.deepEqual(levels, ["entity user-2 on resource gpt-4", "entity user-2", "resource gpt-4, in force", "system"]);
  const changed = await page.locator("#changes td:nth-child(3)").allTextContents();
  assert.deepEqual(changed, why.changes.flatMap((change) => change.fields.map((field) => `${field.of} ${field.field}`)));
  // 12 a second are asked and 10 refilled, for long enough that a whole minute was read.
  await page.waitForFunction(() => /; [1-9]\d* of 60 minutes were read$/.test(document.querySelector("#bucket svg").getAttribute("aria-label")), null, { timeout: 120_000 });
  const label = await page.locator("#bucket svg").first().getAttribute("aria-label");
  assert.match(label, /^rpm, tokens a minute in the last hour; .*; refill 600\/minute; /);
  assert.ok((await page.locator("#bucket rect").count()) > 60, "each minute has a bar, by reads or by the hour's usage");
  assert.match(await page.locator("#bucket rect title").first().textContent(), /^\d\d:\d\d UTC: [\d,.]+ a minute, mean$/);
  // The list goes on beside it, and Escape returns to it.
  assert.equal(await page.locator("#rows a[aria-current]").textContent(), "user-2");
  await page.locator("#filter").press("Escape");
  assert.equal(new URL(page.url()).hash, "#resource/gpt-4/user-2", "a field is emptied by it");
  await page.locator("#bucket-title").focus();
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => document.querySelector("#bucket").hidden);
  assert.equal(new URL(page.url()).hash, "#resource/gpt-4");
});

test("the levels of an opened bucket have the limits that why says, with bursts, classes, quotas and all else", async (t) => {
  const limits = ["rpm=600/minute,burst=900", "tpm=100_000/minute,class=batch:10%:30%", "day=quota:10000/day"];
  await backend.run("limits", "set", "--entity", "user-32", "--resource", "levels", ...limits, "--class", "batch", "--shadow");
  await backend.run("limits", "set", "--entity", "user-32", "slots=5");
  const { page } = await open(t, SIZES.desktop, {}, "#entity/user-32/levels", false);
  await page.locator("#levels td").first().waitFor();
  const why = (await backend.run("why", "user-32", "levels")).split("\n").map((line) => line.split(/\s{2,}/));
  const cells = await page.locator("#levels td:nth-child(2)").allTextContents();
  const says = why.slice(1, cells.length + 1).map((line) => line.at(-2).replace(/^-$/, "–"));
  assert.deepEqual(cells, says);
  assert.match(cells[0], /^day=quota.*,burst=900 .*,class=batch:10%:30%, shadow: .*, callers are of class batch$/);
});

test("a period is written as the command line writes it, which reads it again", async (t) => {
  const { page } = await open(t, SIZES.desktop);
  for (const [ms, text] of [[1000, "second"], [60000, "minute"], [3600000, "hour"], [86400000, "day"], [90000, "1m30s"], [172800500, "2d500ms"]]) {
    assert.equal(await page.evaluate(async (ms) => (await import("./list.js")).period(ms), ms), text);
    await backend.run("limits", "set", "--resource", "periods", `rpm=5/${text}`);
    assert.match(await backend.run("limits", "list", "--resource", "periods"), new RegExp(` rpm=5/${text}\\s`));
  }
});

test("on a phone an opened bucket takes the place of the list, and the keyboard follows", async (t) => {
  const { page } = await open(t, SIZES.phone);
  await page.locator("#filter").fill("user-2");
  await row(page, "user-2").locator("a").focus();
  await page.keyboard.press("Enter");
  await page.locator("#changes td").first().waitFor();
  assert.ok(await page.locator("#buckets").isHidden());
  assert.equal(await page.evaluate(() => document.activeElement.id), "bucket-title");
  await page.locator("#close").click();
  await page.waitForFunction(() => document.activeElement.textContent === "user-2");
});

test("10,000 buckets and more: few lines are in the page, all are found, and the rest by the start of an id", async (t) => {
  const many = await Backend.start("--read-units", "50000");
  t.after(() => many.stop());
  await many.run("acquire", "user-1", "gpt-4", "rpm=1");
  const names = Array.from({ length: 10_200 }, (_, number) => `job-${number}`);
  await many.copies("user-1", "gpt-4", names);
  const context = await chromium.newContext({ viewport: { width: 1440, height: 900 } });
  t.after(() => context.close());
  const page = await context.newPage();
  await page.goto(`${many.url}#resource/gpt-4`);
  const isRead = () => !document.querySelector("#cut").hidden && document.querySelector("#count").textContent.startsWith("10,");
  await page.waitForFunction(isRead, null, { timeout: 300_000 });
  const lines = () => page.locator("#rows .row").count();
  assert.ok((await lines()) < 80, `${await lines()} lines`);
  assert.ok((await page.evaluate(() => document.querySelectorAll("*").length)) < 2_000);
  await page.locator("#order").selectOption("left");
  await page.locator("#filter").fill("JOB-77");
  const found = await page.evaluate(() => document.querySelector("#buckets").getAttribute("aria-rowcount"));
  // Two limits each, and the head; some of the 111 may be beyond what is read.
  assert.ok(Number(found) > 2 * 90 && Number(found) <= 2 * 111 + 1, found);
  await page.locator("#buckets").evaluate((frame) => { frame.scrollTop = frame.scrollHeight; });
  assert.ok((await lines()) < 80, `${await lines()} lines`);
  await page.locator("#filter").fill("job-102");
  await page.keyboard.press("Enter");
  assert.equal(new URL(page.url()).hash, "#resource/gpt-4?starting=job-102");
  await page.waitForFunction(() => document.querySelector("#count").textContent === "11");
  assert.match(await page.locator("#cut").textContent(), /^Only ids that start with “job-102” are read\./);
  await page.locator("#filter").fill("");
  await page.keyboard.press("Enter");
  assert.equal(new URL(page.url()).hash, "#resource/gpt-4");
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

test("a bucket of slots shows its leases, whose holders are text and nothing else", async (t) => {
  const holder = '<img src=x onerror="window.wrong=1">';
  await backend.run("--principal", holder, "acquire", "render-5", "gpu", "slots=1", "--lease", "10m");
  const { page, wrong } = await open(t, SIZES.desktop, { strict: true }, "#resource/gpu/render-5");
  await page.locator("#holders td").first().waitFor();
  // The hour is read by itself.
  await page.locator('#bucket svg[aria-label^="slots, slots held"]').first().waitFor();
  const cells = await page.locator("#holders td").allTextContents();
  assert.deepEqual(cells.slice(0, 2), [holder, "slots 1"]);
  assert.match(cells[2], /^\d+s$/);
  assert.match(cells[3], /^[5-9]m \d+s$/);
  assert.match(await page.locator("#bucket svg").first().getAttribute("aria-label"), /^slots, slots held in the last hour; .*; capacity 8; /);
  assert.equal(await page.locator("#bucket img").count(), 0);
  assert.equal(await page.evaluate(() => window.wrong), undefined);
  assert.deepEqual(wrong, []);
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
