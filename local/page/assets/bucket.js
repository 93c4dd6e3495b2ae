// The details of one bucket: what decides about it, as `weirgate why` says it, and its last hour.
import { $, balance, clock, heat, isOut, isQuota, isSlots, left, make, percent, perSecond, put, refill, short, span, tokens } from "./list.js";

const REASONS_MS = 30000;
const HOUR_MS = 10000;
const SOON_MS = 3000;
const MINUTE_MS = 60000;
const SVG = "http://www.w3.org/2000/svg";
const few = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const many = (value) => (value >= 1000 ? short(Math.round(value)) : few.format(value));

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Table rows of cells: a text, or a text with a class.
function rows(table, lines, none) {
  const made = lines.map((cells) => make("tr", "", "", ...cells.map((cell) => {
    const [text, className] = [cell].flat();
    return make("td", className, text);
  })));
  table.tBodies[0].replaceChildren(...made);
  table.hidden = lines.length === 0;
  let words = table.nextElementSibling;
  if (!words?.classList.contains("empty")) {
    words = make("p", "empty quiet");
    table.after(words);
  }
  put(words, none);
  words.hidden = lines.length > 0;
}

const levelText = (level) =>
  ["entity", "plan", "resource"].filter((part) => level[part]).map((part) => `${part} ${level[part]}`).join(" on ") || "system";

const milli = (limit) => ({
  refill: (limit.refill_tokens ?? 0) * 1000,
  period_ms: limit.refill_period_ms ?? 0,
  capacity: (limit.capacity_tokens ?? limit.slots) * 1000,
  available: (limit.available_tokens ?? 0) * 1000,
  resets: limit.resets,
});

// As `weirgate why` says it.
const configText = (config) => config === null ? "–" : [
  config.limits.map((limit) => limit.text).join(" "),
  config.status === "enforced" ? "" : config.status,
  config.is_shadow ? "shadow: denies nothing" : "",
  config.class ? `callers are of class ${config.class}` : "",
].filter(Boolean).join(", ");

// The last hour of a limit, in bars of a minute.
class Chart {
  constructor(limit) {
    this.limit = limit;
    this.svg = draw("svg", { viewBox: "0 0 60 100", preserveAspectRatio: "none", role: "img", "aria-label": "The last hour is not read yet" });
    this.top = make("span", "top quiet");
    this.line = make("span", "line quiet");
    const axis = make("p", "axis", "", ...["−60 min", "−30 min", "now"].map((words) => make("span", "", words)));
    axis.setAttribute("aria-hidden", "true");
    this.figure = make("figure", "", "", make("div", "plot", "", this.svg, this.top, this.line), axis);
  }

  draw(curve, at) {
    const { limit } = this;
    const isHeld = isSlots(limit);
    const values = (curve?.minutes ?? []).map((value, minute) => {
      const mean = curve.means[minute];
      // What was taken of slots says nothing of how many were held.
      const known = value ?? (isHeld ? null : mean);
      return known === null ? null : { value: Math.max(0, known) / 1000, isMean: value === null };
    });
    // No minute of a quota has a bound of its own.
    const perMinute = isQuota(limit) ? Infinity : (limit.refill / 1000) * (MINUTE_MS / limit.period_ms);
    const mark = isHeld ? limit.capacity / 1000 : perMinute;
    const most = Math.max(Number.isFinite(mark) ? mark : 0, ...values.map((known) => known?.value ?? 0)) || 1;
    const scale = 94 / most;
    const bars = values.map((known, minute) => {
      if (known === null) return null;
      const height = Math.max(known.value > 0 ? 1 : 0.4, known.value * scale);
      const classes = [known.isMean ? "mean" : "", known.value >= mark * 0.95 ? "full" : ""].filter(Boolean).join(" ");
      const bar = draw("rect", { class: classes, x: minute + 0.08, width: 0.84, y: (100 - height).toFixed(2), height: height.toFixed(2) });
      const title = draw("title", {});
      const clock = new Date(at - (values.length - 1 - minute) * MINUTE_MS).toISOString().slice(11, 16);
      const unit = isHeld ? "held" : `a minute${known.isMean ? ", mean" : ""}`;
      title.textContent = `${clock} UTC: ${many(known.value)} ${unit}`;
      bar.append(title);
      return bar;
    });
    const y = Number.isFinite(mark) ? (100 - mark * scale).toFixed(2) : "0";
    this.svg.replaceChildren(...bars.filter((bar) => bar !== null), ...(isQuota(limit) ? [] : [draw("line", { x1: 0, x2: 60, y1: y, y2: y })]));
    const what = isQuota(limit) ? limit.resets : isHeld ? `capacity ${many(mark)}` : `refill ${many(mark)}/minute`;
    put(this.line, what);
    this.line.style.top = `${y}%`;
    put(this.top, most > mark * 1.3 ? `${many(most)}${isHeld ? "" : "/minute"}` : "");
    const read = values.filter((known) => known && !known.isMean);
    const last = values.at(-2) ?? values.at(-1);
    const told = [
      `${limit.name}, ${isHeld ? "slots held" : "tokens a minute"} in the last hour`,
      last ? `${many(last.value)} in the last whole minute` : "the last minute is unknown",
      values.some((known) => known) ? `at most ${many(Math.max(...values.map((known) => known?.value ?? 0)))}` : "",
      what,
      `${read.length} of 60 minutes were read`,
    ];
    this.svg.setAttribute("aria-label", told.filter(Boolean).join("; "));
  }
}

export class Bucket {
  constructor(list) {
    this.list = list;
    this.what = null;
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.what && !/^(INPUT|SELECT)$/.test(event.target.tagName)) location.hash = this.what.back;
    });
  }

  show(what) {
    const isNew = `${what?.entity} ${what?.resource}` !== `${this.what?.entity} ${this.what?.resource}`;
    const last = this.what;
    this.what = what;
    this.list.open = what && `${what.entity} ${what.resource}`;
    $("columns").classList.toggle("open", what !== null);
    $("bucket").hidden = what === null;
    this.list.measure();
    if (what === null) {
      this.pause();
      if (last) this.back(last);
      return;
    }
    $("close").href = what.back;
    $("other").href = what.other;
    put($("other"), what.otherName);
    if (!isNew) return;
    put($("bucket-title"), `${what.entity} on ${what.resource}`);
    put($("bucket-facts"), "");
    this.reasons = null;
    this.hour = null;
    this.lines = [];
    this.seen = new Map();
    $("limits").replaceChildren();
    // Shown in this order.
    this.problems = new Map([["/why", ""], ["/hour", ""]]);
    this.fail("/why", "");
    this.fill();
    this.resume();
    // Where the list gives way, the keyboard goes with it.
    if (!$("buckets").checkVisibility()) $("bucket-title").focus();
  }

  back(last) {
    const lost = document.activeElement === document.body || $("bucket").contains(document.activeElement);
    if (!lost) return;
    const links = [...$("rows").querySelectorAll("a:not([hidden])")];
    const name = this.list.byEntity ? last.resource : last.entity;
    (links.find((link) => link.textContent === name) ?? $("buckets")).focus({ preventScroll: true });
  }

  pause() {
    clearInterval(this.reasonsTimer);
    clearInterval(this.hourTimer);
    clearTimeout(this.soonTimer);
  }

  resume() {
    this.pause();
    if (this.what === null) return;
    this.readReasons();
    this.readHour();
    // The list reads the bucket meanwhile.
    this.soonTimer = setTimeout(() => this.readHour(), SOON_MS);
    this.reasonsTimer = setInterval(() => document.hidden || this.readReasons(), REASONS_MS);
    this.hourTimer = setInterval(() => document.hidden || this.readHour(), HOUR_MS);
  }

  async read(path) {
    const { open } = this.list;
    const { entity, resource } = this.what;
    let [found, problem] = [null, ""];
    try {
      const response = await fetch(`${path}?entity=${encodeURIComponent(entity)}&resource=${encodeURIComponent(resource)}`);
      if (response.ok) found = await response.json();
      else problem = await response.text();
    } catch {
      problem = "The page's server does not answer.";
    }
    if (open !== this.list.open) return null;
    this.fail(path, problem);
    return found;
  }

  // Each read has its own problem, which only that read ends.
  fail(path, problem) {
    this.problems.set(path, problem);
    const all = [...new Set(this.problems.values())].filter(Boolean).join("\n");
    put($("bucket-problem"), all);
    $("bucket-problem").hidden = all === "";
  }

  async readReasons() {
    const reasons = await this.read("/why");
    if (reasons === null) return;
    this.reasons = reasons;
    this.readAt = this.list.time();
    this.fill();
  }

  async readHour() {
    const hour = await this.read("/hour");
    if (hour === null) return;
    this.hour = hour;
    this.draw();
  }

  fill() {
    const { reasons } = this;
    for (const id of ["next-part", "levels", "parents"]) $(id).hidden = reasons === null;
    if (reasons === null) {
      put($("bucket-cost"), "Reading.");
      $("stopped").hidden = true;
      for (const table of ["holders", "changes"]) rows($(table), [], "–");
      put($("lease-count"), "");
      return;
    }
    const stop = reasons.stopped_at;
    put($("stopped"), stop === null ? "" : `Stopped at ${levelText(stop)}: every acquire is refused.`);
    $("stopped").hidden = stop === null;
    this.limits(reasons.limits);
    $("next").replaceChildren(...reasons.next.map(({ reason, command }) => make("li", "", "", make("span", "", reason), make("code", "", command))));
    const [{ plan }] = reasons.entities;
    const isOwn = (level) => (level.entity ?? reasons.entity) === reasons.entity && (level.plan ?? plan) === plan;
    const inForce = reasons.levels.find((level) => level.config !== null && isOwn(level));
    const isShown = (level) => level.config !== null || level.switch !== null || isOwn(level);
    rows($("levels"), reasons.levels.filter(isShown).map((level) => [
      `${levelText(level)}${level === inForce ? ", in force" : ""}`,
      configText(level.config),
      [level.switch ?? "–", level.switch ?? ""],
    ]), "none");
    const parents = reasons.entities.slice(1).map((parent, index) => {
      const child = reasons.entities[index];
      return `${child.id} has the parent ${parent.id}, and ${child.cascades ? "also takes from it" : "takes nothing from it"}.`;
    });
    put($("parents"), parents.join(" "));
    $("parents").hidden = parents.length === 0;
    const now = this.list.now();
    for (const { id } of reasons.leases) if (!this.seen.has(id)) this.seen.set(id, now);
    const { length } = reasons.leases;
    put($("lease-count"), length < reasons.lease_count ? `${length} of ${short(reasons.lease_count)}, the first to expire` : "");
    this.leases();
    rows($("changes"), reasons.changes.flatMap((change) => change.fields.map((field, index) => [
      [index > 0 ? "" : new Date(change.at_ms).toISOString().replace("T", " ").slice(0, 19), "time"],
      index > 0 ? "" : change.principal,
      `${field.of} ${field.field}`,
      field.before,
      field.after,
    ])), "None that is kept.");
    put($("bucket-cost"), `Read at ${clock(this.readAt)} UTC, and again every 30 s while it is open.`);
    this.change();
    this.draw();
  }

  limits(limits) {
    const same = limits.length === this.lines.length && limits.every((limit, index) => {
      const { known } = this.lines[index];
      return limit.limit === known.limit && limit.entity === known.entity && limit.refill_tokens === known.refill_tokens
        && limit.refill_period_ms === known.refill_period_ms && limit.capacity_tokens === known.capacity_tokens;
    });
    if (same) {
      limits.forEach((known, index) => {
        const line = this.lines[index];
        line.known = known;
        if (line.chart) Object.assign(line.chart.limit, milli(known));
      });
      return;
    }
    const table = make("table", "limits");
    const heads = [["Limit"], ["Balance"], ["of capacity", "number"], ["Refill", "number"], ["Used/s", "number"], ["Saturation", "number"], ["From"]]
      .map(([words, className]) => make("th", className, words));
    table.append(make("thead", "", "", make("tr", "", "", ...heads)), make("tbody"));
    this.lines = limits.map((known) => {
      const row = make("tr");
      const cells = Object.fromEntries(["name", "meter", "left", "refill", "used", "saturation", "from"].map((name) => {
        const cell = make("td", ["left", "refill", "used", "saturation"].includes(name) ? `number ${name}` : name);
        row.append(cell);
        return [name, cell];
      }));
      const fill = make("i");
      cells.meter.append(make("span", "bar", "", fill));
      table.tBodies[0].append(row);
      const isOwn = known.entity === this.what.entity;
      const line = { known, row, cells, fill, isOwn, chart: null };
      put(cells.name, isOwn ? known.limit : `${known.limit} of ${known.entity}`);
      if (isOwn) {
        line.chart = new Chart({ name: known.limit, ...milli(known) });
        const cell = make("td", "", "", line.chart.figure);
        cell.colSpan = 7;
        table.tBodies[0].append(make("tr", "chart", "", cell));
      }
      return line;
    });
    $("limits").replaceChildren(this.lines.length > 0 ? table : make("p", "quiet", "No limits are configured."));
  }

  // Shows what has changed since, by the list, which is read more often.
  change() {
    if (this.what === null || this.reasons === null) return;
    const row = this.list.buckets.get(this.list.open);
    const now = this.list.now();
    if (row) {
      const shards = row.shards === 1 ? "1 shard" : `${row.shards} shards`;
      put($("bucket-facts"), `${shards}, ${perSecond(row.granted)} acquires granted a second`);
    } else put($("bucket-facts"), this.lines.length > 0 ? "Not in the list beside it, so its rates are those of this hour." : "");
    for (const { known, row: element, cells, fill, isOwn } of this.lines) {
      const live = isOwn ? row?.limits.find((limit) => limit.name === known.limit) : undefined;
      const limit = live ?? milli(known);
      const value = live ? balance(limit, row.at, now) : balance(limit, this.readAt, Math.min(now, this.readAt + 2 * REASONS_MS));
      const part = left(limit, value);
      const state = isOut(value) ? "out" : part < 0.2 ? "low" : "";
      if (element.className !== state) element.className = state;
      fill.style.transform = `scaleX(${part.toFixed(3)})`;
      put(cells.left, `${tokens(value)} / ${tokens(limit.capacity)}`);
      put(cells.refill, refill(limit));
      const isMinute = live && live.saturation !== null;
      const saturation = isMinute ? live.saturation : known.saturation?.percent;
      const over = isMinute ? Math.min(Math.max(MINUTE_MS, row.over_ms), row.over_ms + now - row.at) : known.saturation?.over_ms;
      put(cells.saturation, percent(saturation));
      cells.saturation.className = `number saturation ${heat(saturation)}`;
      cells.saturation.title = saturation === undefined || saturation === null ? "unknown" : isQuota(limit) ? "used of this window" : isSlots(limit) ? "slots held now, of all" : `used of refilled in the last ${span(over)}`;
      const used = live?.used ?? (known.saturation && known.saturation.over_ms > 0 ? (1e6 * known.saturation.used_tokens) / known.saturation.over_ms : null);
      put(cells.used, isSlots(limit) ? "" : perSecond(used));
      const from = known.from === null ? "not the table" : levelText(known.from);
      put(cells.from, known.scale ? `${from}: ${known.scale}` : from);
    }
    this.leases();
  }

  leases() {
    const now = this.list.now();
    rows($("holders"), this.reasons.leases.map((lease) => [
      lease.owner || "–",
      Object.entries(lease.tokens).map(([name, amount]) => `${name} ${amount}`).join(", "),
      [span(now - this.seen.get(lease.id)), "number"],
      [lease.expires_at_ms > now ? span(lease.expires_at_ms - now) : "expired", "number"],
    ]), "No lease.");
  }

  draw() {
    if (this.hour === null) return;
    for (const { known, chart } of this.lines) chart?.draw(this.hour.limits[known.limit], this.hour.at);
  }
}
