// Decodes the page's data: columns of numbers become typed arrays, lanes know what they show between two times.

const DATA = JSON.parse(document.getElementById("data").textContent);
const KINDS = DATA.kinds;

// First index whose value is greater than x.
function upper(sorted, x) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (sorted[mid] > x) high = mid; else low = mid + 1;
  }
  return low;
}

// Work of each kind before every piece, so that any interval's shares are two look-ups.
function cumulate(start, end, kinds) {
  const sums = KINDS.map(() => new Float64Array(start.length + 1));
  for (let i = 0; i < start.length; i++) {
    for (let k = 0; k < sums.length; k++) sums[k][i + 1] = sums[k][i];
    sums[kinds[i]][i + 1] += end[i] - start[i];
  }
  return sums;
}

// What an engine is planned to do: one period that repeats for a number of steps.
class PlanLane {
  constructor(schedule, index, raw) {
    this.schedule = schedule;
    this.index = index;
    this.name = raw.name;
    this.busy = raw.busy;
    this.compute = raw.compute;
    this.op = Uint32Array.from(raw.op);
    this.shift = Int32Array.from(raw.step);
    this.start = Float64Array.from(raw.start);
    this.end = Float64Array.from(raw.end);
    this.gaps = raw.gaps;
    this.period = schedule.step;
    this.from = 0;
    this.to = schedule.steps * schedule.step;
    this.sums = cumulate(this.start, this.end, Array.from(this.op, (o) => schedule.ops.kind[o]));
    // Work that reaches into the next period.
    const n = this.op.length;
    this.carry = n ? Math.max(0, this.end[n - 1] - this.period) : 0;
  }
  get measured() { return false; }
  // Pieces that overlap [a, b]: visit(piece) until it returns true.
  visit(a, b, visit) {
    const P = this.period, n = this.op.length;
    a = Math.max(a, this.from); b = Math.min(b, this.to);
    if (!n || a > b) return;
    for (let period = Math.floor(a / P) - 1; period * P <= b; period++) {
      if (period < -1 || period >= this.schedule.steps) continue;
      const at = period * P;
      let i = Math.max(0, upper(this.start, a - at) - 1);
      for (; i < n && this.start[i] + at <= b; i++) {
        if (this.end[i] + at < a || this.end[i] + at <= this.from) continue;
        if (visit(this.piece(period, i))) return;
      }
    }
  }
  piece(period, i) {
    const at = period * this.period, step = period + this.shift[i];
    return { lane: this, key: period * this.op.length + i, op: this.op[i], step,
      start: this.start[i] + at, end: this.end[i] + at };
  }
  count(a, b) {
    return Math.max(0, Math.min(b, this.to) - Math.max(a, this.from)) / this.period * this.op.length;
  }
  // Pieces in order of time have rising keys.
  neighbour(key, by) {
    const n = this.op.length, next = key + by, period = Math.floor(next / n);
    if (period < -1 || period >= this.schedule.steps) return null;
    const piece = this.piece(period, next - period * n);
    return piece.end <= this.from || piece.start >= this.to ? null : piece;
  }
  // Work of kind k up to time t.
  work(k, t) {
    const P = this.period, n = this.op.length, period = Math.floor(t / P), u = t - period * P;
    const sums = this.sums[k], kind = this.schedule.ops.kind;
    let work = period * sums[n];
    const i = upper(this.start, u);
    work += sums[i];
    if (i > 0 && kind[this.op[i - 1]] === k) work -= Math.max(0, this.end[i - 1] - u);
    if (this.carry && kind[this.op[n - 1]] === k) work += Math.min(u, this.carry);
    return work;
  }
  shares(a, b, out) {
    a = Math.max(a, this.from); b = Math.min(b, this.to);
    for (let k = 0; k < KINDS.length; k++) out[k] = b > a ? this.work(k, b) - this.work(k, a) : 0;
  }
  // The first piece of an instance.
  find(op, step) {
    const start = this.schedule.ops.start[op] + step * this.period;
    let found = null;
    this.visit(start - 1, start + this.schedule.ops.time[op] + this.period, (p) => {
      if (p.op === op && p.step === step) { found = p; return true; }
      return p.start > start + this.period;
    });
    return found;
  }
}

// What an engine of a rank did.
class RunLane {
  constructor(schedule, rank, raw) {
    this.schedule = schedule;
    this.rank = rank;
    this.index = raw.lane;
    this.name = raw.name;
    this.op = Uint32Array.from(raw.op);
    this.steps = Int32Array.from(raw.step);
    this.start = Float64Array.from(raw.start);
    this.end = Float64Array.from(raw.end);
    // Transfers of several queues may overlap, so ends do not rise with starts.
    this.latest = new Float64Array(this.end.length);
    for (let i = 0, m = -Infinity; i < this.end.length; i++) this.latest[i] = m = Math.max(m, this.end[i]);
    this.sums = cumulate(this.start, this.end, Array.from(this.op, (o) => schedule.ops.kind[o]));
    this.gaps = [];
  }
  get measured() { return true; }
  piece(i) {
    return { lane: this, key: i, op: this.op[i], step: this.steps[i], start: this.start[i], end: this.end[i] };
  }
  visit(a, b, visit) {
    for (let i = upper(this.latest, a - 1e-9); i < this.op.length && this.start[i] <= b; i++) {
      if (this.end[i] >= a && visit(this.piece(i))) return;
    }
  }
  count(a, b) { return upper(this.start, b) - upper(this.latest, a); }
  neighbour(key, by) { return key + by >= 0 && key + by < this.op.length ? this.piece(key + by) : null; }
  work(k, t) {
    const i = upper(this.start, t), sums = this.sums[k];
    const last = i > 0 && this.schedule.ops.kind[this.op[i - 1]] === k ? Math.max(0, this.end[i - 1] - t) : 0;
    return sums[i] - last;
  }
  shares(a, b, out) {
    for (let k = 0; k < KINDS.length; k++) out[k] = Math.min(b - a, Math.max(0, this.work(k, b) - this.work(k, a)));
  }
  find(op, step) {
    if (!this.known) {
      this.known = new Map();
      for (let i = 0; i < this.op.length; i++) this.known.set(this.op[i] + "/" + this.steps[i], i);
    }
    const i = this.known.get(op + "/" + step);
    return i === undefined ? null : this.piece(i);
  }
}

// Links of operations: those into operation i are [from[i], from[i + 1]) of the columns.
class Links {
  constructor(raw, n) {
    this.from = Uint32Array.from(raw.from);
    this.op = Uint32Array.from(raw.op);
    this.distance = Uint32Array.from(raw.distance);
    this.reason = Uint8Array.from(raw.reason);
    this.stated = Uint8Array.from(raw.stated);
    // The other way round.
    this.afterFrom = new Uint32Array(n + 1);
    for (const op of this.op) this.afterFrom[op + 1]++;
    for (let i = 0; i < n; i++) this.afterFrom[i + 1] += this.afterFrom[i];
    const fill = this.afterFrom.slice();
    this.after = new Uint32Array(this.op.length);
    this.to = new Uint32Array(this.op.length);
    for (let i = 0; i < n; i++) {
      for (let k = this.from[i]; k < this.from[i + 1]; k++) {
        this.to[k] = i;
        this.after[fill[this.op[k]]++] = k;
      }
    }
  }
  link(k) {
    return { op: this.op[k], to: this.to[k], distance: this.distance[k],
      reason: DATA.reasons[this.reason[k]], stated: !!this.stated[k] };
  }
  into(op) {
    const list = [];
    for (let k = this.from[op]; k < this.from[op + 1]; k++) list.push(this.link(k));
    return list;
  }
  out(op) {
    const list = [];
    for (let k = this.afterFrom[op]; k < this.afterFrom[op + 1]; k++) list.push(this.link(this.after[k]));
    return list;
  }
}

function decode(raw, index) {
  const s = Object.assign({}, raw, { index });
  const n = raw.ops.name.length;
  s.ops = Object.assign({}, raw.ops);
  for (const column of ["kind", "lane", "cycle"]) s.ops[column] = Uint8Array.from(raw.ops[column]);
  for (const column of ["stage", "priority"]) s.ops[column] = Int32Array.from(raw.ops[column]);
  for (const column of ["start", "time", "end"]) s.ops[column] = Float64Array.from(raw.ops[column]);
  // What waits for it starts so long after it has ended.
  s.ops.lag = Float64Array.from(raw.ops.lag || new Array(n).fill(0));
  s.links = new Links(raw.links, n);
  s.lanes = raw.lanes.map((lane, i) => new PlanLane(s, i, lane));
  s.runs = (raw.measured ? raw.measured.ranks : [])
    .map((r) => ({ rank: r.rank, lanes: r.lanes.map((lane) => new RunLane(s, r.rank, lane)) }));
  s.begin = 0;
  s.extent = s.steps * s.step;
  for (const run of s.runs) {
    for (const lane of run.lanes) {
      if (!lane.op.length) continue;
      s.begin = Math.min(s.begin, lane.start[0]);
      s.extent = Math.max(s.extent, lane.latest[lane.latest.length - 1]);
    }
  }
  s.batch = (op, step) => step + s.ops.stage[op] + s.first;
  // The lane of the same engine that a piece's neighbours are on: planned, or of the same rank.
  s.laneOf = (op, like) => {
    const lane = s.ops.lane[op];
    if (!like.measured) return s.lanes[lane];
    const run = s.runs.find((r) => r.rank === like.rank);
    return run && run.lanes.find((l) => l.index === lane);
  };
  return s;
}

const SCHEDULES = DATA.schedules.map(decode);
// The picture's ends: a slow first step may begin before it is aligned to.
const BEGIN = Math.min(...SCHEDULES.map((s) => s.begin));
const EXTENT = Math.max(...SCHEDULES.map((s) => s.extent));

// Nanoseconds for people.
function duration(ns, digits = 3) {
  const size = Math.abs(ns);
  const [unit, by] = size < 1e3 ? ["ns", 1] : size < 1e6 ? ["\u00b5s", 1e3] : size < 1e9 ? ["ms", 1e6] : ["s", 1e9];
  return (by === 1 ? String(Math.round(ns)) : String(Number((ns / by).toPrecision(digits)))) + "\u202f" + unit;
}
function signed(ns) { return (ns > 0 ? "+" : ns < 0 ? "\u2212" : "") + duration(Math.abs(ns)); }
// Numbers with a decimal prefix: 1.5 M.
function amount(value, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P", "E"];
  let i = 0;
  while (Math.abs(value) >= 999.5 && i + 1 < prefixes.length) { value /= 1000; i++; }
  return Number(value.toPrecision(3)) + "\u202f" + prefixes[i] + unit;
}
function stepsBefore(distance) {
  return distance === 0 ? "" : distance === 1 ? " of the step before" : ` of ${distance} steps before`;
}
function stepsAfter(distance) {
  return distance === 0 ? "" : distance === 1 ? " of the next step" : ` of ${distance} steps later`;
}
const WHY = {
  data: "its values", rows: "rows of a table", parameter: "dense parameters", batch: "the batch",
  order: "order that the schedule states", queue: "before it in its engine's queue",
};
