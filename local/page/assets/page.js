// What is shown, and the events that bring it. Every name from the table is shown as text.
import { Bucket } from "./bucket.js";
import { $, List, clock, levelKey, make, perSecond, put, short } from "./list.js";

const list = new List($("buckets"), $("rows"), $("none"));
const bucket = new Bucket(list);
// What the server reads of a resource at most.
const MAX_BUCKETS = 10000;
const HIDDEN_MS = 30000;
// The list counts as read for so long after a read, or so many times as long as reading it takes.
const FRESH_MS = 20000;
const FRESH_SWEEPS = 3;
let source = null;
let subject = null;
let isCut = false;
let names = { resources: [], entities: [] };
let day = null;
let actions = [];
let hiddenTimer = 0;
let retryTimer = 0;
let isReady = false;
let connection = [];

// The address says what is shown: #resource/gpt-4, #resource/gpt-4?starting=user-1 or #entity/user-1, and
// behind the name which bucket is open: #resource/gpt-4/user-1.
function chosen() {
  const found = /^#(resource|entity)\/([^/?]+)(?:\/([^/?]+))?(?:\?starting=(.+))?$/.exec(location.hash);
  if (found === null) return null;
  try {
    const [name, open, start] = found.slice(2).map((part) => (part === undefined ? undefined : decodeURIComponent(part)));
    return { kind: found[1], name, open, start: found[1] === "resource" ? start : undefined };
  } catch {
    return null;
  }
}

function address({ kind, name, start }, open) {
  const bucket = open === undefined ? "" : `/${encodeURIComponent(open)}`;
  const search = start === undefined ? "" : `?starting=${encodeURIComponent(start)}`;
  return `#${kind}/${encodeURIComponent(name)}${bucket}${search}`;
}
list.address = (row) => address(subject, subject.kind === "entity" ? row.resource : row.entity);

function state(...now) {
  connection = now;
  refresh();
}

// Shows how time passes: between two reads balances refill, and what is not read is not live.
function refresh() {
  const isStale = list.isStale();
  const [name, words] = connection;
  $("dot").className = isStale ? "off" : name;
  put($("state"), isStale && list.readAt !== null ? `Not read since ${clock(list.readAt)} UTC` : words);
  document.querySelector("main").classList.toggle("stale", isStale);
  list.draw();
  bucket.change();
  facts();
}

function problem(words) {
  put($("problem"), words ?? "");
  $("problem").hidden = !words;
}

function connect() {
  clearTimeout(retryTimer);
  source?.close();
  source = null;
  if (document.hidden && hiddenTimer === -1) return;
  const start = subject?.start === undefined ? "" : `&starting=${encodeURIComponent(subject.start)}`;
  const query = subject ? `?${subject.kind}=${encodeURIComponent(subject.name)}${start}` : "";
  const opened = new EventSource(`/events${query}`);
  source = opened;
  state("", "Connecting");
  for (const [name, take] of Object.entries(EVENTS)) {
    opened.addEventListener(name, (event) => {
      const data = JSON.parse(event.data);
      if (data.now) list.offset = data.now - Date.now();
      take(data);
    });
  }
  opened.onerror = () => {
    if (opened !== source) return;
    list.until = list.now();
    state("off", "Not connected");
    opened.close();
    refused(query);
  };
}

// A refusal has its reason in the response, which an EventSource does not show.
async function refused(query) {
  const asked = source;
  try {
    const response = await fetch(`/events${query}`);
    if (!response.ok) problem(await response.text());
    else response.body.cancel();
  } catch {
    problem("The page's server does not answer. It ends with the command that started it.");
  }
  retryTimer = setTimeout(() => asked === source && connect(), 2000);
}

const EVENTS = {
  hello(hello) {
    put($("table"), hello.table);
    put($("namespace"), hello.namespace);
    problem(null);
    if (!hello.has_actions) {
      put($("no-actions"), "The functions of this table run elsewhere, and their logs have what they do. Only weirgate local shows it here.");
    }
    if (!hello.has_callers) put($("denied-note"), "callers count them: --metrics");
    list.clear(subject?.kind === "entity");
    isReady = false;
    actions = [];
    // What it shows is live once it is read.
    if (subject === null) state("live", "Live");
    else state("", "Connecting");
  },
  switches({ switches, unreadable }) {
    list.switches = new Map(switches.map((level) => [levelKey(level), level.switch]));
    list.ofPlans = switches.filter((level) => level.plan);
    banner(switches, unreadable);
    list.draw();
    facts();
  },
  callers(callers) {
    const read = callers.filter((caller) => caller.problem === null);
    const rates = read.map((caller) => caller.denied_per_second).filter((rate) => rate !== null);
    put($("denied"), rates.length === 0 ? "–" : perSecond(1000 * rates.reduce((sum, rate) => sum + rate, 0)));
    const [first, ...others] = (read.length > 0 ? read : callers).map((caller) => caller.name);
    const names = others.length > 0 ? `${first} and ${others.length} more` : first;
    const failed = callers.find((caller) => caller.problem !== null);
    put($("denied-note"), failed ? `${failed.name} cannot be read` : `in all, by ${names}`);
    $("denied-note").title = callers.map((caller) => {
      return `${caller.name}: ${caller.problem ?? `${caller.denied} denied since it began`}`;
    }).join("\n");
    $("denied").classList.toggle("some", rates.some((rate) => rate > 0));
  },
  names(known) {
    names = known;
    if (subject === null && known.resources.length > 0) {
      location.replace(address({ kind: "resource", name: known.resources[0] }));
    }
    suggest();
    links();
  },
  rows({ rows, gone }) {
    list.change(rows, gone);
    bucket.change();
    facts();
  },
  progress(progress) {
    isReady ||= progress.sweep_ms !== null;
    $("cost").dataset.sweep = progress.sweep_ms ?? "";
    problem(progress.problem);
    list.readAt = progress.read_at_ms;
    const until = list.readAt + Math.max(FRESH_MS, FRESH_SWEEPS * progress.sweep_ms);
    list.until = progress.problem ? Math.min(list.now(), until) : until;
    isCut = progress.is_cut;
    search();
    if (progress.problem) state("off", "Not read");
    else state("live", "Live");
  },
  usage(usage) {
    day = usage;
    const select = $("measure");
    const wanted = ["", ...usage.measures.slice(1).map((measure) => measure.limit)];
    if (wanted.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
      const now = select.value;
      select.replaceChildren(...wanted.map((name) => new Option(name || "Acquires", name)));
      select.value = wanted.includes(now) ? now : "";
    }
    usageBars();
  },
  actions(lines) {
    for (const line of lines) {
      // Batches that only confirm what is known come several times a second: one line for those in a row.
      if (line.is_idle && actions.at(-1)?.is_idle) actions.pop();
      actions.push(line);
    }
    actions = actions.slice(-40);
    const items = actions.toReversed().map((action) => {
      const time = make("time", "", new Date(action.at_ms).toLocaleTimeString("en-GB"));
      const words = make("span", action.text.startsWith("failed") ? "failed" : "", action.text);
      const item = make("li", "", "", time, make("b", "", action.function), words);
      item.title = `${action.took_ms} ms`;
      return item;
    });
    $("actions").replaceChildren(...items);
    $("actions").classList.add("some");
    $("no-actions").hidden = true;
  },
  cost(cost) {
    const viewers = cost.viewers === 1 ? "1 viewer" : `${cost.viewers} viewers`;
    const sweep = Number($("cost").dataset.sweep);
    const every = sweep > 0 ? ` All buckets take ${(sweep / 1000).toFixed(1)} s.` : "";
    const now = cost.units_per_second.toFixed(1);
    const sum = short(Math.round(cost.units));
    put($("cost"), `This page reads ${now} of at most ${cost.allowed} read units a second, ${sum} so far, for ${viewers}.${every}`);
  },
};

const MANY = 8;

// The levels that an operator has switched.
function banner(switches, unreadable) {
  const parts = [];
  for (const [word, title] of [["stopped", "Stopped"], ["exempt", "Exempt"]]) {
    const levels = switches.filter((level) => level.switch === word);
    if (levels.length === 0) continue;
    const part = make("p", word, "", make("b", "", title));
    for (const level of levels.slice(0, MANY)) {
      const { entity, plan, resource } = level;
      const whose = plan ? `plan ${plan}` : entity && !resource ? `entity ${entity}` : entity;
      const on = whose && resource ? `${whose} on ${resource}` : (whose ?? (resource ? `resource ${resource}` : "the whole namespace"));
      const link = make(entity || resource ? "a" : "span", "", on);
      if (entity) link.href = address({ kind: "entity", name: entity }, resource);
      else if (resource) link.href = address({ kind: "resource", name: resource });
      part.append(link);
    }
    const more = levels.length - MANY;
    if (more > 0) part.append(make("span", "", `and ${more} more: weirgate switches`));
    parts.push(part);
  }
  for (const error of unreadable) parts.push(make("p", "stopped", `A switch cannot be read: ${error}`));
  $("switches").replaceChildren(...parts);
  $("switches").hidden = parts.length === 0;
}

// Beyond what is read, the table itself finds ids by their start.
function search() {
  const wanted = $("filter").value.trim();
  let words = "";
  if (subject?.start !== undefined) words = `Only ids that start with “${subject.start}” are read. `;
  if (isCut) {
    words += `Only some ${short(MAX_BUCKETS)} buckets are read.`;
    if (subject.kind === "resource") words += wanted === "" ? " Type the start of an id and press Enter to find others." : ` Enter finds all ids that start with “${wanted}”.`;
  } else if (words !== "") words += "Empty the field and press Enter for all.";
  put($("cut"), words);
  $("cut").hidden = words === "";
}

function facts() {
  const { granted, leases, out, saturated, measured, stopped } = list.sums();
  const count = list.buckets.size;
  put($("count"), count || isReady ? short(count) : "–");
  put($("granted"), perSecond(granted));
  put($("leases"), count || isReady ? short(leases) : "–");
  put($("short"), count || isReady ? short(out) : "–");
  $("short").classList.toggle("some", out > 0);
  put($("saturated"), measured > 0 ? short(saturated) : "–");
  $("saturated").classList.toggle("some", saturated > 0);
  put($("saturated-note"), measured > 0 ? `at 95% and more, of ${short(measured)}` : "at 95% and more");
  put($("count-note"), stopped > 0 ? `${short(stopped)} stopped` : "");
  const kind = subject?.kind === "entity" ? "entity" : "resource";
  let words = "Waiting for the first read.";
  if (list.lines.length > 0) words = "";
  else if (count > 0) words = "No bucket has such a name.";
  else if (subject === null) words = "Type the name of a resource or an entity above.";
  else if (isReady) words = `This ${kind} has no buckets. A bucket begins with its first acquire.`;
  put($("none"), words);
}

function usageBars() {
  if (day === null) return;
  const measure = day.measures.find((one) => (one.limit ?? "") === $("measure").value) ?? day.measures[0];
  const amount = (value) => (measure.limit === null ? value : Math.floor(value / 1000));
  const most = Math.max(1, ...measure.hours.map(amount));
  const current = Math.floor((day.at - day.start) / 3600000);
  const bars = $("bars");
  while (bars.childElementCount < 24) bars.append(make("i"));
  const told = [];
  measure.hours.forEach((value, hour) => {
    const bar = bars.children[hour];
    const clock = `${String(hour).padStart(2, "0")}:00`;
    bar.className = hour === current ? "now" : hour > current ? "later" : "";
    bar.style.transform = hour > current ? "" : `scaleY(${Math.max(0.015, amount(value) / most).toFixed(3)})`;
    bar.title = `${clock} UTC: ${amount(value).toLocaleString("en")}`;
    if (value !== 0) told.push(`${clock} ${amount(value).toLocaleString("en")}`);
  });
  const what = measure.limit === null ? "acquires" : `tokens of ${measure.limit}`;
  bars.setAttribute("aria-label", told.length > 0 ? `${what} by hour: ${told.join(", ")}` : "No usage yet");
  const sum = measure.hours.reduce((total, value) => total + amount(value), 0);
  put($("sum"), `${sum.toLocaleString("en")} ${what}`);
  const lacks = day.unreadable > 0 ? `, without ${day.unreadable} items that cannot be read` : "";
  put($("as-of"), `at ${new Date(day.at).toISOString().slice(11, 16)} UTC${lacks}`);
  const most_used = Math.max(1, ...measure.top.map((user) => user[2]));
  const items = measure.top.map(([entity, resource, value]) => {
    const name = subject?.kind === "entity" ? resource : entity;
    const [bar, link] = [make("i"), make("a", "", name)];
    link.href = address(subject, name);
    bar.style.transform = `scaleX(${(value / most_used).toFixed(3)})`;
    return make("li", "", "", bar, link, make("span", "", short(amount(value))));
  });
  $("top").replaceChildren(...items);
  $("no-top").hidden = items.length > 0;
}

function suggest() {
  const isEntity = $("choose").elements.kind.value === "entity";
  const known = isEntity ? names.entities : names.resources;
  $("known").replaceChildren(...known.map((name) => new Option(name, name)));
}

function links() {
  const found = names.resources.map((name) => {
    const link = make("a", "", name);
    link.href = address({ kind: "resource", name });
    if (subject?.kind === "resource" && subject.name === name) link.setAttribute("aria-current", "page");
    return link;
  });
  $("links").replaceChildren(...found);
}

function show() {
  const before = subject;
  subject = chosen();
  const isSame = ["kind", "name", "start"].every((part) => before?.[part] === subject?.[part]);
  bucket.show(subject && subject.open !== undefined ? {
    ...(subject.kind === "entity" ? { entity: subject.name, resource: subject.open } : { entity: subject.open, resource: subject.name }),
    back: address(subject),
    other: subject.kind === "entity" ? address({ kind: "resource", name: subject.open }) : address({ kind: "entity", name: subject.open }),
    otherName: `All buckets of ${subject.open}`,
  } : null);
  if (before !== null && isSame) return;
  const kind = subject?.kind ?? "resource";
  $("choose").elements.kind.value = kind;
  if (subject) $("name").value = subject.name;
  put($("key-title"), kind === "entity" ? "Resource" : "Entity");
  put($("buckets-title"), subject ? `Buckets of ${subject.name}` : "Buckets");
  put($("top-title"), kind === "entity" ? "Busiest resources today" : "Busiest today");
  document.title = subject ? `${subject.name} · Weirgate` : "Weirgate";
  day = null;
  isReady = false;
  $("top").replaceChildren();
  $("bars").replaceChildren();
  $("bars").setAttribute("aria-label", "No usage yet");
  put($("sum"), "–");
  put($("as-of"), "");
  $("no-top").hidden = false;
  list.clear(kind === "entity");
  list.filter = $("filter").value = subject?.start ?? "";
  isCut = false;
  search();
  problem(null);
  suggest();
  links();
  connect();
}

$("choose").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = $("name").value.trim();
  if (name === "") return $("name").focus();
  location.hash = address({ kind: $("choose").elements.kind.value, name });
});
$("choose").addEventListener("change", (event) => event.target.name === "kind" && suggest());
$("filter").addEventListener("input", () => {
  list.filter = $("filter").value.trim();
  list.frame.scrollTop = 0;
  list.arrange();
  search();
  facts();
});
$("filter").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || subject?.kind !== "resource") return;
  const start = list.filter === "" ? undefined : list.filter;
  if (start !== subject.start && (isCut || subject.start !== undefined)) location.hash = address({ ...subject, start });
});
$("order").addEventListener("change", () => {
  list.order = $("order").value;
  list.arrange();
});
$("measure").addEventListener("change", usageBars);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT)$/.test(event.target.tagName)) {
    event.preventDefault();
    $("filter").focus();
  }
});
$("buckets").addEventListener("keydown", (event) => {
  if (event.target === $("buckets") && event.key === "Enter") $("rows").querySelector("a:not([hidden])")?.focus();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("buckets").focus();
});
// A page that is not seen needs no reads.
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) {
    hiddenTimer = setTimeout(() => {
      hiddenTimer = -1;
      source?.close();
      bucket.pause();
      state("", "Paused");
    }, HIDDEN_MS);
  } else {
    if (hiddenTimer === -1) {
      connect();
      bucket.resume();
    }
    hiddenTimer = 0;
  }
});
addEventListener("hashchange", show);
setInterval(() => document.hidden || refresh(), 1000);
show();
