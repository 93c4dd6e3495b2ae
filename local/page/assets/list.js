// The list of buckets: one line for each limit, of which only the visible ones are in the page.

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const rate = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const PERIODS = [[86400000, "day"], [3600000, "hour"], [60000, "minute"], [1000, "second"]];
const UNITS = [[86400000, "d"], [3600000, "h"], [60000, "m"], [1000, "s"], [1, "ms"]];

// Millitokens as whole tokens. No acquire takes a part of one.
export const tokens = (milli) => number.format(Math.floor(milli / 1000) || 0);
// A short form for places of fixed width.
export const short = (value) => (Math.abs(value) < 100000 ? number.format(value) : compact.format(value));
export const perSecond = (milli) => {
  if (milli === null || milli === undefined) return "–";
  const value = milli / 1000;
  return Math.abs(value) < 1000 ? rate.format(value) : short(value);
};

export function span(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days > 0) return `${days}d ${hours}h`;
  if (hours > 0) return `${hours}h ${minutes}m`;
  return minutes > 0 ? `${minutes}m ${seconds % 60}s` : `${seconds}s`;
}

// A quota has a window, and nothing refills within it.
export const isQuota = (limit) => Boolean(limit.resets);
export const isSlots = (limit) => limit.refill === 0 && !isQuota(limit);

// A period as the command line writes and reads it: minute, 1m30s.
export function period(ms) {
  const [, whole] = PERIODS.find(([unit]) => unit === ms) ?? [];
  const parts = UNITS.map(([unit, name], index) => [Math.floor((index > 0 ? ms % UNITS[index - 1][0] : ms) / unit), name]);
  return whole ?? parts.filter(([number]) => number > 0).map(([number, name]) => `${number}${name}`).join("");
}

// A refill as it is written: 600/minute. Slots have none, and a quota says when it resets.
export function refill(limit) {
  if (isQuota(limit)) return limit.resets;
  if (isSlots(limit)) return "slots";
  return `${short(limit.refill / 1000)}/${period(limit.period_ms)}`;
}

// From this saturation on, in percent, a limit denies, or is about to.
export const SATURATED = 95;
const HIGH = 80;

export function percent(value) {
  if (value === null || value === undefined) return "–";
  return value > 999 ? ">999%" : `${value}%`;
}
export function heat(value) {
  if (!value) return "none";
  return value < HIGH ? "" : value < SATURATED ? "high" : "full";
}

const SOURCES = {
  entity_resource: ["this bucket", (row) => `${row.entity} on ${row.resource}`],
  entity: ["entity", (row) => `entity ${row.entity}`],
  plan_resource: ["plan", (row) => `plan of ${row.entity} on ${row.resource}`],
  plan: ["plan", (row) => `plan of ${row.entity}`],
  resource: ["resource", (row) => `resource ${row.resource}`],
  system: ["system", () => "system"],
  caller: ["caller", () => "not the table's: callers bring it, or none has taken since a change"],
};

// The balance at an instant: a rate refills up to its capacity.
export function balance(limit, at, now) {
  if (limit.refill === 0 || limit.available >= limit.capacity) return limit.available;
  const gained = (limit.refill * Math.max(0, now - at)) / limit.period_ms;
  return Math.min(limit.capacity, limit.available + gained);
}

export function left(limit, value) {
  return limit.capacity > 0 ? Math.max(0, Math.min(1, value / limit.capacity)) : 0;
}

export const isOut = (value) => value < 1000;

export const clock = (ms) => new Date(ms).toISOString().slice(11, 19);

export const $ = (id) => document.getElementById(id);

export function make(tag, className = "", text = "", ...children) {
  const element = Object.assign(document.createElement(tag), { className, textContent: text });
  element.append(...children);
  return element;
}

function set(element, name, value) {
  if (element[name] !== value) element[name] = value;
}
export const put = (element, text) => set(element, "textContent", text);

const CELLS = ["key", "limit", "meter", "left", "refill", "used", "saturation", "from", "granted", "shards", "leases"];
const NUMBERS = ["left", "refill", "used", "saturation", "granted", "shards", "leases"];
const SOFT = ["refill", "limit", "used", "from", "shards", "leases"];

// A level as a key of a map. Names have no `#`.
export const levelKey = ({ level, entity = "", resource = "" }) => `${level}#${entity}#${resource}`;

export class List {
  constructor(frame, rows, none) {
    Object.assign(this, { frame, rows, none });
    this.buckets = new Map();
    this.lines = [];
    this.shown = new Map();
    this.free = [];
    this.filter = "";
    this.order = "name";
    this.byEntity = false;
    this.offset = 0;
    this.until = Infinity;
    this.open = null;
    // By `levelKey`; and those of plans.
    this.switches = new Map();
    this.ofPlans = [];
    // Address of a bucket's details.
    this.address = () => "#";
    frame.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.measure()).observe(frame);
    rows.addEventListener("keydown", (event) => this.move(event));
    rows.addEventListener("click", (event) => {
      const index = [...this.shown].find(([, row]) => row.element.contains(event.target))?.[0];
      if (index !== undefined && !event.target.closest("a")) location.hash = this.address(this.buckets.get(this.lines[index][0]));
    });
    this.measure();
  }

  time() { return Date.now() + this.offset; }
  // What is refilled stands still where reads no longer bear it out.
  now() { return Math.min(this.time(), this.until); }
  isStale() { return this.time() >= this.until; }

  clear(byEntity) {
    this.buckets.clear();
    this.until = Infinity;
    this.readAt = null;
    this.byEntity = byEntity;
    this.frame.scrollTop = 0;
    this.arrange();
  }

  // Takes over changed and removed buckets.
  change(rows, gone) {
    let isNew = this.order !== "name";
    for (const row of rows) {
      const key = `${row.entity} ${row.resource}`;
      const old = this.buckets.get(key);
      isNew ||= old === undefined || old.limits.length !== row.limits.length;
      this.buckets.set(key, row);
    }
    for (const [entity, resource] of gone) isNew = this.buckets.delete(`${entity} ${resource}`) || isNew;
    if (isNew) this.arrange();
    else this.draw();
  }

  measure() {
    this.height = parseFloat(getComputedStyle(this.rows).getPropertyValue("--row")) * 16;
    this.draw(true);
  }

  name(row) { return this.byEntity ? row.resource : row.entity; }

  arrange() {
    const wanted = this.filter.toLowerCase();
    let found = [...this.buckets.keys()].filter((key) => {
      return wanted === "" || this.name(this.buckets.get(key)).toLowerCase().includes(wanted);
    });
    const now = this.now();
    const least = (row) => Math.min(1, ...row.limits.map((limit) => left(limit, balance(limit, row.at, now))));
    const most = (row) => -Math.max(-1, ...row.limits.map((limit) => limit.saturation ?? -1));
    const rank = {
      name: () => 0,
      saturation: most,
      left: least,
      granted: (row) => -(row.granted ?? 0),
    }[this.order];
    const ranked = found.map((key) => [rank(this.buckets.get(key)), this.name(this.buckets.get(key)), key]);
    ranked.sort((one, other) => one[0] - other[0] || (one[1] < other[1] ? -1 : one[1] > other[1] ? 1 : 0));
    this.lines = [];
    for (const [, , key] of ranked) {
      const { limits } = this.buckets.get(key);
      for (let index = 0; index < Math.max(1, limits.length); index++) this.lines.push([key, index]);
    }
    this.found = found.length;
    this.rows.style.height = `${this.lines.length * this.height}px`;
    this.frame.setAttribute("aria-rowcount", this.lines.length + 1);
    this.draw();
  }

  // Shows the lines that are in sight, and a few more for the keyboard.
  draw(isMoved = false) {
    if (isMoved) this.rows.style.height = `${this.lines.length * this.height}px`;
    const top = this.frame.scrollTop;
    const from = Math.max(0, Math.floor(top / this.height) - 4);
    const to = Math.min(this.lines.length, Math.ceil((top + this.frame.clientHeight) / this.height) + 4);
    for (const [index, row] of this.shown) {
      const isInUse = row.element.contains(document.activeElement) && index < this.lines.length;
      if ((index >= from && index < to) || isInUse) continue;
      row.element.hidden = true;
      this.shown.delete(index);
      this.free.push(row);
    }
    const now = this.now();
    for (let index = from; index < to; index++) {
      let row = this.shown.get(index);
      if (row === undefined) {
        row = this.free.pop() ?? this.make();
        row.element.hidden = false;
        row.element.setAttribute("aria-rowindex", index + 2);
        row.element.style.transform = `translateY(${index * this.height}px)`;
        this.shown.set(index, row);
      } else if (isMoved) {
        row.element.style.transform = `translateY(${index * this.height}px)`;
      }
      this.fill(row, this.lines[index], now);
    }
    // In the order of the lines, for readers and the keyboard.
    if (this.rows.childElementCount !== this.shown.size + this.free.length || this.isUnordered()) {
      const ordered = [...this.shown.keys()].sort((one, other) => one - other);
      for (const index of ordered) {
        const { element } = this.shown.get(index);
        if (!element.contains(document.activeElement)) this.rows.append(element);
      }
    }
  }

  isUnordered() {
    let last = 0;
    for (const element of this.rows.children) {
      if (element.hidden) continue;
      const index = Number(element.getAttribute("aria-rowindex"));
      if (index < last) return true;
      last = index;
    }
    return false;
  }

  make() {
    const element = make("div");
    element.setAttribute("role", "row");
    const cells = {};
    for (const name of CELLS) {
      const cell = make("span", name);
      cell.setAttribute("role", "cell");
      if (NUMBERS.includes(name)) cell.classList.add("number");
      if (SOFT.includes(name)) cell.classList.add("soft");
      element.append(cell);
      cells[name] = cell;
    }
    const [link, again, tag, fill] = [make("a"), make("span", "unseen"), make("b"), make("i")];
    cells.key.append(link, again, tag);
    cells.meter.append(make("span", "bar", "", fill));
    this.rows.append(element);
    return { element, cells, link, again, tag, fill };
  }

  fill(row, [key, index], now) {
    const bucket = this.buckets.get(key);
    if (bucket === undefined) return;
    const { element, cells, link, again, tag, fill } = row;
    const limit = bucket.limits[index];
    const isFirst = index === 0;
    const value = limit ? balance(limit, bucket.at, now) : 0;
    const part = limit ? left(limit, value) : 0;
    const state = bucket.error ? " out" : !limit ? "" : isOut(value) ? " out" : part < 0.2 ? " low" : "";
    const isOpen = key === this.open ? " open" : "";
    const classes = `row${isFirst ? " first" : ""}${state}${isOpen}`;
    set(element, "className", classes);
    const name = this.name(bucket);
    put(link, isFirst ? name : "");
    put(again, isFirst ? "" : name);
    set(link, "hidden", !isFirst);
    if (isFirst) {
      const address = this.address(bucket);
      if (link.getAttribute("href") !== address) link.href = address;
      set(link, "title", name);
      if (isOpen) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const wait = bucket.paused_until - now;
    const own = this.switchOf(bucket);
    const mark = !isFirst ? "" : wait > 0 && own !== "stopped" ? "paused" : own ?? "";
    put(tag, mark === "paused" ? `paused, ${span(wait + 999)}` : mark);
    set(tag, "className", `tag ${mark}`);
    set(tag, "hidden", mark === "");
    put(cells.limit, limit ? limit.name : bucket.error ? "cannot be read" : "no limit");
    set(cells.limit, "title", bucket.error ?? limit?.name ?? "");
    const scale = `scaleX(${part.toFixed(3)})`;
    if (fill.style.transform !== scale) fill.style.transform = scale;
    put(cells.left, limit ? `${tokens(value)} / ${tokens(limit.capacity)}` : "");
    const what = limit ? refill(limit) : "";
    put(cells.refill, what.replace(/^resets on | [(f].*/g, ""));
    set(cells.refill, "title", what);
    put(cells.used, limit ? perSecond(limit.used) : "");
    set(cells.granted, "className", bucket.granted ? "granted number" : "granted number none");
    const saturation = limit ? percent(limit.saturation) : "";
    put(cells.saturation, saturation);
    set(cells.saturation, "className", `saturation number ${limit ? heat(limit.saturation) : ""}`);
    const [source, level] = SOURCES[limit?.from] ?? [limit ? "–" : "", () => "not all levels are read: open the bucket"];
    put(cells.from, source);
    set(cells.from, "title", limit ? level(bucket) : "");
    put(cells.granted, isFirst ? perSecond(bucket.granted) : "");
    put(cells.shards, isFirst ? String(bucket.shards) : "");
    put(cells.leases, isFirst ? String(bucket.leases) : "");
  }

  // The switch of the narrowest level that has one, as the limiter decides it. Unknown if a plan's may decide:
  // rows have no plan.
  switchOf({ entity, resource }) {
    if (this.switches.size === 0) return undefined;
    const first = (...levels) => levels.map((level) => this.switches.get(levelKey(level))).find(Boolean);
    const own = first({ level: "entity_resource", entity, resource }, { level: "entity", entity });
    const wider = first({ level: "resource", resource }, { level: "system" });
    const isSure = this.ofPlans.every((level) => level.switch === wider || (level.resource ?? resource) !== resource);
    return own ?? (isSure ? wider : undefined);
  }

  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const at = [...this.shown].find(([, row]) => row.element.contains(document.activeElement));
    if (at === undefined) return;
    let index = at[0] + step;
    while (this.lines[index] && this.lines[index][1] !== 0) index += step;
    if (this.lines[index] === undefined) return;
    const [above, below] = [index * this.height, (index + 1) * this.height];
    const heads = this.frame.firstElementChild.offsetHeight;
    if (above < this.frame.scrollTop) this.frame.scrollTop = above;
    else if (below > this.frame.scrollTop + this.frame.clientHeight - heads) {
      this.frame.scrollTop = below - this.frame.clientHeight + heads;
    }
    this.draw();
    this.shown.get(index)?.link.focus({ preventScroll: true });
  }

  sums() {
    const now = this.now();
    let [granted, leases, out, isKnown] = [0, 0, 0, false];
    let [saturated, measured, stopped] = [0, 0, 0];
    for (const bucket of this.buckets.values()) {
      granted += bucket.granted ?? 0;
      isKnown ||= bucket.granted !== null;
      leases += bucket.leases;
      stopped += this.switchOf(bucket) === "stopped" ? 1 : 0;
      for (const limit of bucket.limits) {
        out += isOut(balance(limit, bucket.at, now)) ? 1 : 0;
        if (limit.saturation === null) continue;
        measured += 1;
        saturated += limit.saturation >= SATURATED ? 1 : 0;
      }
    }
    return { granted: isKnown ? granted : null, leases, out, saturated, measured, stopped };
  }
}
