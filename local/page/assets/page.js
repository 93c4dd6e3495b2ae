// What is shown, and the events that bring it. Every name from the table is shown as text.
import { List, perSecond, short } from "./list.js";

const $ = (id) => document.getElementById(id);
const list = new List($("buckets"), $("rows"), $("none"));
const HIDDEN_MS = 30000;
let source = null;
let subject = null;
let names = { resources: [], entities: [] };
let day = null;
let actions = [];
let hiddenTimer = 0;
let retryTimer = 0;
let isReady = false;

function put(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

// The address says what is shown: #resource/gpt-4 or #entity/user-1.
function chosen() {
  const found = /^#(resource|entity)\/(.+)$/.exec(location.hash);
  if (found === null) return null;
  try {
    return { kind: found[1], name: decodeURIComponent(found[2]) };
  } catch {
    return null;
  }
}

function state(name, words) {
  $("dot").className = name;
  put($("state"), words);
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
  const query = subject ? `?${subject.kind}=${encodeURIComponent(subject.name)}` : "";
  const opened = new EventSource(`/events${query}`);
  source = opened;
  state("", "Connecting");
  for (const [name, take] of Object.entries(EVENTS)) {
    opened.addEventListener(name, (event) => take(JSON.parse(event.data)));
  }
  opened.onerror = () => {
    if (opened !== source) return;
    state("off", "Not connected");
    if (opened.readyState === EventSource.CLOSED) refused(query);
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
  retryTimer = setTimeout(() => asked === source && connect(), 5000);
}

const EVENTS = {
  hello(hello) {
    list.offset = hello.now - Date.now();
    put($("table"), hello.table);
    put($("namespace"), hello.namespace);
    state("live", "Live");
    problem(null);
    if (!hello.has_actions) {
      put($("no-actions"), "The functions of this table run elsewhere, and their logs have what they do. Only weirgate local shows it here.");
    }
    list.clear(subject?.kind === "entity");
    isReady = false;
    actions = [];
  },
  names(known) {
    names = known;
    if (subject === null && known.resources.length > 0) {
      location.replace(`#resource/${encodeURIComponent(known.resources[0])}`);
    }
    suggest();
    links();
  },
  rows({ now, rows, gone }) {
    list.offset = now - Date.now();
    list.change(rows, gone);
    facts();
  },
  progress(progress) {
    isReady ||= progress.sweep_ms !== null;
    $("cost").dataset.sweep = progress.sweep_ms ?? "";
    problem(progress.problem ?? (progress.is_cut ? "Only the first 2,000 buckets are shown." : null));
    facts();
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
      const item = document.createElement("li");
      const [time, name, words] = ["time", "b", "span"].map((tag) => document.createElement(tag));
      time.textContent = new Date(action.at_ms).toLocaleTimeString("en-GB");
      name.textContent = action.function;
      words.textContent = action.text;
      if (action.text.startsWith("failed")) words.className = "failed";
      item.title = `${action.took_ms} ms`;
      item.append(time, name, words);
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

function facts() {
  const { granted, leases, out } = list.sums();
  const count = list.buckets.size;
  put($("count"), count || isReady ? short(count) : "–");
  put($("granted"), perSecond(granted));
  put($("leases"), count || isReady ? short(leases) : "–");
  put($("short"), count || isReady ? short(out) : "–");
  $("short").classList.toggle("some", out > 0);
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
  while (bars.childElementCount < 24) bars.append(document.createElement("i"));
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
    const item = document.createElement("li");
    const [bar, link, words] = ["i", "a", "span"].map((tag) => document.createElement(tag));
    const byEntity = subject?.kind === "entity";
    const [kind, name] = byEntity ? ["resource", resource] : ["entity", entity];
    link.href = `#${kind}/${encodeURIComponent(name)}`;
    link.textContent = name;
    words.textContent = short(amount(value));
    bar.style.transform = `scaleX(${(value / most_used).toFixed(3)})`;
    item.append(bar, link, words);
    return item;
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
    const link = document.createElement("a");
    link.href = `#resource/${encodeURIComponent(name)}`;
    link.textContent = name;
    if (subject?.kind === "resource" && subject.name === name) link.setAttribute("aria-current", "page");
    return link;
  });
  $("links").replaceChildren(...found);
}

function show() {
  subject = chosen();
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
  problem(null);
  suggest();
  links();
  facts();
  connect();
}

$("choose").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = $("name").value.trim();
  if (name === "") return $("name").focus();
  location.hash = `#${$("choose").elements.kind.value}/${encodeURIComponent(name)}`;
});
$("choose").addEventListener("change", (event) => event.target.name === "kind" && suggest());
$("filter").addEventListener("input", () => {
  list.filter = $("filter").value.trim();
  list.frame.scrollTop = 0;
  list.arrange();
  facts();
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
      state("", "Paused");
    }, HIDDEN_MS);
  } else {
    if (hiddenTimer === -1) connect();
    hiddenTimer = 0;
  }
});
addEventListener("hashchange", show);
// Between two reads balances refill.
setInterval(() => {
  if (document.hidden || list.buckets.size === 0) return;
  list.draw();
  facts();
}, 1000);
show();
