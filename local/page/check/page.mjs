// The page of a backend with callers in a real browser, and what its tests ask of it.
import { readFile } from "node:fs/promises";
import { after, before } from "node:test";
import { fileURLToPath } from "node:url";
import { Backend, browser, fill } from "./backend.mjs";

const axe = await readFile(fileURLToPath(import.meta.resolve("axe-core/axe.min.js")), "utf8");
export let backend;
export let chromium;

before(async () => {
  backend = await Backend.startWithAgent();
  await fill(backend);
  chromium = await browser();
});

after(async () => {
  await chromium?.close();
  await backend?.stop();
});

// Opens the page. Fails the test for an error in the console, or a request to another place.
export async function open(t, [width, height], options = {}, hash = "#resource/gpt-4", isWhole = hash === "#resource/gpt-4") {
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
  await page.waitForFunction(isRead, isWhole);
  return { page, wrong };
}

export const row = (page, name) => page.locator("#rows .row.first:not([hidden])", { has: page.getByText(name, { exact: true }) });

// Where everything is that holds numbers, or stands beside them.
export const places = (page) =>
  page.evaluate(() => {
    const parts = document.querySelectorAll("[id], section, .row:not([hidden]), .row:not([hidden]) > span, dl div");
    const seen = [...parts].filter((part) => part.checkVisibility() && !part.closest("#top, #actions, #bars, #sum, #as-of, option, footer"));
    return seen.map((part) => {
      const { x, y, width, height } = part.getBoundingClientRect();
      return [part.id || part.tagName, x, y, width, height].join(" ");
    });
  });

// Everything that is seen and not whole: beyond its panel, or shortened in its cell.
export const cut = (page) =>
  page.evaluate(() => {
    // On narrow windows some are there for screen readers alone.
    const isWhole = (part) => part === null || getComputedStyle(part).clipPath === "none";
    const isSeen = (cell) => cell.checkVisibility() && isWhole(cell) && isWhole(cell.closest(".heads"));
    const all = (selector) => [...document.querySelectorAll(selector)].filter(isSeen);
    const right = (one) => one.getBoundingClientRect().right;
    const cells = all("#rows .row:not([hidden]) > span, .heads .row > span, #bucket td, #bucket th, .facts div, .choose > *, .head > *");
    const beyond = cells.filter((cell) => right(cell) > right(cell.closest("section")) + 1);
    // Only names may be shortened: they are of any length, and whole in their title.
    const named = (cell) => cell.title !== "" && cell.title === cell.textContent;
    const whole = all("#rows .row:not([hidden]) > span:not(.key), .heads .row > span, .facts dt, .facts dd, #bucket td, #bucket th").filter((cell) => !named(cell));
    // A part of a pixel is enough for an ellipsis.
    const text = document.createRange();
    const isShortened = (cell) => {
      text.selectNodeContents(cell);
      return cell.scrollWidth > cell.clientWidth + 1 || (!cell.firstElementChild && right(text) > right(cell) + 0.05);
    };
    const shortened = whole.filter(isShortened);
    const over = document.documentElement.scrollWidth > innerWidth ? ["the page is too wide"] : [];
    return [...over, ...[...beyond, ...shortened].map((cell) => `${cell.className || cell.id || cell.tagName}: ${cell.textContent}`)];
  });

export const accessible = async (page) => {
  await page.evaluate(axe);
  const found = await page.evaluate(async () => (await window.axe.run()).violations);
  return found.map((one) => `${one.id}: ${one.nodes.map((node) => node.html)}`);
};
