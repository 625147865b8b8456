// Rows of the picture and how they are painted. Only what is in view is touched; where operations are narrower than a
// pixel, a column shows the share of each kind instead.

const GUTTER = 128, AXIS = 30, HEAD = 44, SPACE = 14, CAPTION = 18;
// Least and greatest heights: lanes grow into the room that there is.
const LANE = [44, 84], RUN = [24, 44], MEMORY = [82, 150];
const canvas = document.getElementById("canvas");
const scroller = document.getElementById("scroll");
const context = canvas.getContext("2d");
const css = {};

const view = {
  from: BEGIN, to: EXTENT, width: 0, height: 0,
  cycle: true, idle: true, memory: true,
  kind: -1, selected: null, hover: null, matches: null, query: "", printing: false,
};

function rows() {
  const list = layOut(0), most = layOut(1), room = view.printing ? 0 : scroller.clientHeight;
  if (room <= list.total) return list;
  return layOut(Math.min(1, (room - list.total) / Math.max(1, most.total - list.total)));
}
function layOut(growth) {
  const list = [], tall = ([least, most]) => Math.floor(least + growth * (most - least));
  let y = AXIS;
  const add = (height, row) => { list.push(Object.assign({ y, height }, row)); y += height; };
  SCHEDULES.forEach((s, i) => {
    if (i > 0) y += SPACE;
    add(HEAD, { type: "head", schedule: s, text: s.label, detail: headDetail(s) });
    for (const lane of s.lanes) add(tall(LANE), { type: "lane", schedule: s, lane });
    for (const run of s.runs) {
      add(HEAD - 10, { type: "head", schedule: s, text: `rank ${run.rank}, measured`, small: true });
      for (const lane of run.lanes) add(tall(RUN), { type: "lane", schedule: s, lane });
    }
    if (view.memory) { y += 8; add(tall(MEMORY), { type: "memory", schedule: s }); }
  });
  list.total = y + 4;
  return list;
}
function headDetail(s) {
  const step = `step ${duration(s.step)}`, where = `${step} \u00b7 ${s.cluster}`;
  return [`${where}, ${s.ranks} rank${s.ranks === 1 ? "" : "s"}`, where, step];
}
let ROWS = rows();

const scale = () => (view.width - GUTTER) / (view.to - view.from);
const xOf = (t) => GUTTER + (t - view.from) * scale();
const tOf = (x) => view.from + (x - GUTTER) / scale();

// Colours with a neighbouring batch's shade: each second batch is lighter, later microbatches are lighter too.
function mix(hex, other, share) {
  const at = (c, i) => parseInt(c.slice(1 + 2 * i, 3 + 2 * i), 16);
  const part = (i) => Math.round(at(hex, i) * (1 - share) + at(other, i) * share);
  return `rgb(${part(0)},${part(1)},${part(2)})`;
}
const SHADES = 8;
let fills = [], tiles = [];
function luminance(rgb) {
  const [r, g, b] = rgb.match(/\d+/g).map((v) => Number(v) / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function shadeOf(s, op, step) {
  const m = s.ops.microbatch ? s.ops.microbatch[op] : -1;
  const odd = ((s.batch(op, step) % 2) + 2) % 2;
  const part = m > 0 ? Math.round((m / s.microbatches) * 3) : 0;
  return odd * 4 + part;
}
function palette() {
  fills = KINDS.map((k) => Array.from({ length: SHADES }, (_, i) => {
    const fill = mix(k.colour, "#ffffff", (i >= 4 ? 0.27 : 0) + (i % 4) * 0.08);
    const bright = luminance(fill);
    return { fill, ink: (bright + 0.05) / 0.05 > 1.05 / (bright + 0.05) ? "#000000" : "#ffffff" };
  }));
  tiles = KINDS.map((k) => fills[0] && pattern(k.pattern, k.ink));
}
// A small repeating tile.
function pattern(name, ink) {
  if (name === "solid") return null;
  const tile = document.createElement("canvas"), size = 8, ratio = 2;
  tile.width = tile.height = size * ratio;
  const c = tile.getContext("2d");
  c.scale(ratio, ratio);
  c.strokeStyle = c.fillStyle = ink;
  c.globalAlpha = 0.26;
  c.lineWidth = 1;
  c.beginPath();
  const rising = () => { c.moveTo(-1, 5); c.lineTo(5, -1); c.moveTo(-1, 9); c.lineTo(9, -1); c.moveTo(3, 9); c.lineTo(9, 3); };
  const falling = () => { c.moveTo(-1, 3); c.lineTo(5, 9); c.moveTo(-1, -1); c.lineTo(9, 9); c.moveTo(3, -1); c.lineTo(9, 5); };
  const level = () => { c.moveTo(0, 2); c.lineTo(8, 2); c.moveTo(0, 6); c.lineTo(8, 6); };
  const upright = () => { c.moveTo(2, 0); c.lineTo(2, 8); c.moveTo(6, 0); c.lineTo(6, 8); };
  if (name === "rising" || name === "crossed") rising();
  if (name === "falling" || name === "crossed") falling();
  if (name === "horizontal" || name === "grid") level();
  if (name === "vertical" || name === "grid") upright();
  c.stroke();
  if (name === "dotted") for (const [x, y] of [[2, 2], [6, 6]]) { c.beginPath(); c.arc(x, y, 1.2, 0, 7); c.fill(); }
  const made = context.createPattern(tile, "repeat");
  made.setTransform(new DOMMatrix().scale(1 / ratio));
  return made;
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "panel", "ink", "soft", "line", "faint", "accent", "idle", "lane", "match"]) {
    css[name] = style.getPropertyValue("--" + name).trim();
  }
  css.font = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
  palette();
}

const widths = new Map();
function textWidth(text) {
  let w = widths.get(context.font + text);
  if (w === undefined) {
    if (widths.size > 20000) widths.clear();
    widths.set(context.font + text, (w = context.measureText(text).width));
  }
  return w;
}
function font(size, weight = 400) { context.font = `${weight} ${size}px ${css.font}`; }
// The longest form that fits: the whole name, its last parts, the beginning of the last one, the kind's letter.
function fitting(name, letter, room) {
  if (textWidth(name) <= room) return name;
  const parts = name.split(".");
  for (let i = 1; i < parts.length; i++) {
    const tail = parts.slice(i).join(".");
    if (textWidth(tail) <= room) return tail;
  }
  const last = parts[parts.length - 1];
  const guess = Math.floor((room / textWidth(last)) * last.length) - 1;
  for (let n = Math.min(guess, last.length - 1); n >= 4; n--) {
    const cut = last.slice(0, n) + "\u2026";
    if (textWidth(cut) <= room) return cut;
  }
  return textWidth(letter) <= room ? letter : "";
}

// The beginning of a text that fits.
function cut(text, room) {
  if (textWidth(text) <= room) return text;
  let n = Math.floor((room / textWidth(text)) * text.length);
  while (n > 0 && textWidth(text.slice(0, n) + "\u2026") > room) n--;
  return text.slice(0, n) + "\u2026";
}

// Whether something is in focus while search or legend dim the rest.
function dimmed(s, op) {
  if (view.kind >= 0 && s.ops.kind[op] !== view.kind) return true;
  return view.matches !== null && !view.matches.sets[s.index].has(op);
}

function draw() {
  const c = context, ratio = devicePixelRatio || 1;
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.fillStyle = css.paper;
  c.fillRect(0, 0, view.width, view.height);
  const top = view.printing ? 0 : scroller.scrollTop;
  const stats = { boxes: 0, dense: 0 };
  c.save();
  c.translate(0, -top);
  for (const row of ROWS) {
    if (row.y + row.height < top || row.y > top + view.height) continue;
    if (row.type === "lane") lane(c, row, stats);
    else if (row.type === "memory") memoryRow(c, row);
    else head(c, row);
  }
  boundaries(c);
  if (view.cycle) cycleEdges(c, top);
  if (view.selected) arrows(c);
  c.restore();
  axis(c);
  view.stats = stats;
}

function head(c, row) {
  c.textBaseline = "middle";
  c.textAlign = "left";
  const y = row.y + (row.small ? row.height - 14 : 14);
  font(row.small ? 12 : 14, 650);
  c.fillStyle = css.ink;
  const title = cut(row.text, view.width - 24);
  c.fillText(title, 12, y);
  const x = 12 + textWidth(title) + 12;
  if (!row.detail) return;
  font(12);
  c.fillStyle = css.soft;
  const detail = row.detail.find((text) => textWidth(text) <= view.width - x - 6);
  if (detail) c.fillText(detail, x, y);
}

function lane(c, row, stats) {
  const { lane, schedule: s, y, height } = row;
  c.fillStyle = css.lane;
  c.fillRect(GUTTER, y, view.width - GUTTER, height - 4);
  c.save();
  c.beginPath();
  c.rect(GUTTER, y - 2, view.width - GUTTER, height);
  c.clip();
  const boxes = lane.count(view.from, view.to);
  if (boxes > Math.max(1500, (view.width - GUTTER) * 1.2)) dense(c, row, stats);
  else {
    if (view.idle && lane.compute) idle(c, row);
    lane.visit(view.from, view.to, (p) => { box(c, row, p); stats.boxes++; });
  }
  if (view.matches) marks(c, row);
  c.restore();
  // The gutter covers what was panned beneath it.
  c.fillStyle = css.paper;
  c.fillRect(0, y - 2, GUTTER, height);
  c.textBaseline = "middle";
  c.textAlign = "left";
  c.fillStyle = css.ink;
  font(lane.measured ? 12 : 13, lane.measured ? 400 : 600);
  const middle = y + (height - 4) / 2;
  c.fillText(lane.name, 12, lane.measured ? middle : middle - 8);
  if (!lane.measured) {
    font(11);
    c.fillStyle = css.soft;
    c.fillText(`busy ${percent(lane.busy / s.step)}`, 12, middle + 9);
  }
}
function percent(share) {
  const p = share * 100;
  return (p > 0 && p < 0.1 ? "< 0.1" : p.toFixed(p >= 99.95 || p === 0 ? 0 : 1)) + "%";
}

function box(c, row, p) {
  const { schedule: s, lane } = row;
  const P = !lane.measured;
  const left = Math.max(xOf(P ? Math.max(p.start, lane.from) : p.start), GUTTER - 20);
  const right = Math.min(xOf(P ? Math.min(p.end, lane.to) : p.end), view.width + 20);
  const width = Math.max(right - left, 0.6), y = row.y, h = row.height - 4;
  const kind = s.ops.kind[p.op], shade = fills[kind][shadeOf(s, p.op, p.step)];
  const dim = dimmed(s, p.op);
  c.globalAlpha = dim ? 0.22 : 1;
  // A hair between neighbours as soon as there is room for it.
  const gap = width > 4 ? 1 : width > 2 ? 0.5 : 0;
  c.fillStyle = shade.fill;
  c.fillRect(left, y, width - gap, h);
  if (width > 5 && tiles[kind]) { c.fillStyle = tiles[kind]; c.fillRect(left, y, width - gap, h); }
  if (view.cycle && !lane.measured && s.ops.cycle[p.op]) {
    c.fillStyle = css.ink;
    c.fillRect(left, y + h - 4, width - gap, 4);
  }
  if (width > 16) label(c, row, p, left, width, shade);
  c.globalAlpha = 1;
  const chosen = view.selected, over = view.hover;
  const same = (o) => o && o.lane === lane && o.op === p.op && o.step === p.step;
  if (same(chosen) || same(over)) {
    c.strokeStyle = same(chosen) ? css.accent : css.ink;
    c.lineWidth = same(chosen) ? 3 : 1.5;
    c.strokeRect(left + 0.5, y - 0.5, Math.max(width - gap - 1, 1), h + 1);
    if (same(chosen)) {
      c.strokeStyle = css.paper;
      c.lineWidth = 1;
      if (width > 6) c.strokeRect(left + 2.5, y + 1.5, width - gap - 5, h - 3);
    }
  }
}

function label(c, row, p, left, width, shade) {
  const s = row.schedule, name = s.ops.name[p.op], h = row.height - 4;
  // Of a wide box the part in view has the label.
  const from = Math.max(left, GUTTER), room = Math.min(left + width, view.width) - from - 8;
  font(11.5);
  const text = fitting(name, KINDS[s.ops.kind[p.op]].letter, room);
  if (!text) return;
  c.textBaseline = "middle";
  c.textAlign = "left";
  const two = h >= 36;
  const batch = `batch ${s.batch(p.op, p.step)}` + (s.ops.microbatch && s.ops.microbatch[p.op] >= 0 ? `.${s.ops.microbatch[p.op]}` : "");
  const y = row.y + (two ? h / 2 - 8 : h / 2);
  plate(c, text, from + 4, y, shade);
  if (two) {
    font(10.5);
    const below = textWidth(batch) <= room ? batch : batch.slice(6);
    if (textWidth(below) <= room) plate(c, below, from + 4, y + 15, shade, 0.85);
  }
}
// Text on a pattern: a plain plate of the fill keeps it readable.
function plate(c, text, x, y, shade, alpha = 1) {
  const w = textWidth(text), before = c.globalAlpha;
  c.globalAlpha = before * 0.86;
  c.fillStyle = shade.fill;
  c.fillRect(x - 2, y - 7, w + 4, 14);
  c.globalAlpha = before * alpha;
  c.fillStyle = shade.ink;
  c.fillText(text, x, y + 0.5);
  c.globalAlpha = before;
}

function dense(c, row, stats) {
  const { lane, y } = row, h = row.height - 4, out = new Float64Array(KINDS.length);
  const left = Math.floor(Math.max(GUTTER, xOf(lane.measured ? view.from : lane.from)));
  const right = Math.ceil(Math.min(view.width, xOf(lane.measured ? view.to : lane.to)));
  // Stretches where one kind prevails get its letter.
  const stretches = [];
  for (let x = left; x < right; x++) {
    const a = tOf(x), b = tOf(x + 1);
    lane.shares(a, b, out);
    let bottom = y + h, most = -1;
    for (let k = 0; k < out.length; k++) {
      if (out[k] <= 0) continue;
      const part = (out[k] / (b - a)) * h;
      if (part > h / 2) most = k;
      c.globalAlpha = view.kind >= 0 && view.kind !== k ? 0.22 : 1;
      c.fillStyle = fills[k][0].fill;
      c.fillRect(x, bottom - part, 1, part);
      bottom -= part;
    }
    const last = stretches[stretches.length - 1];
    if (last && last.kind === most) last.to = x + 1;
    else stretches.push({ kind: most, from: x, to: x + 1 });
  }
  c.globalAlpha = 1;
  for (const { kind, from, to } of stretches) {
    if (kind < 0 || to - from < 9) continue;
    if (tiles[kind]) { c.fillStyle = tiles[kind]; c.fillRect(from, y, to - from, h); }
    font(11.5);
    c.textBaseline = "middle";
    c.textAlign = "left";
    const { name, letter } = KINDS[kind], text = textWidth(name) <= to - from - 10 ? name : letter;
    if (textWidth(text) <= to - from - 4) plate(c, text, (from + to - textWidth(text)) / 2, y + h / 2, fills[kind][0]);
  }
  c.globalAlpha = 1;
  stats.dense++;
}

function idle(c, row) {
  const { lane, schedule: s, y } = row, h = row.height - 4;
  eachGap(lane, view.from, view.to, (gap, a, b) => {
    const left = xOf(a), width = xOf(b) - left;
    if (width < 1) return;
    c.save();
    c.beginPath();
    c.rect(left, y, width, h);
    c.clip();
    c.globalAlpha = 0.16;
    c.fillStyle = css.idle;
    c.fillRect(left, y, width, h);
    c.globalAlpha = 0.55;
    c.strokeStyle = css.idle;
    c.lineWidth = 1;
    c.beginPath();
    for (let x = left - h - (left % 9); x < left + width; x += 9) { c.moveTo(x, y + h); c.lineTo(x + h, y); }
    c.stroke();
    c.globalAlpha = 1;
    font(11, 600);
    const cause = gap.waits ? s.ops.name[gap.waits[0]] : "";
    const room = Math.min(left + width, view.width) - Math.max(left, GUTTER) - 10;
    const x = Math.max(left, GUTTER) + 5, time = duration(b - a);
    const first = [`idle ${time}, waits for`, `${time}, waits for`, "waits for", "waits"].find((f) => textWidth(f) <= room);
    const forms = gap.waits ? [first, fitting(cause, "", room)] : [[`idle ${time}`, "idle"].find((f) => textWidth(f) <= room)];
    // At least the letter of what it waits for.
    if (gap.waits && !forms[0] && !forms[1]) {
      const { letter } = KINDS[s.ops.kind[gap.waits[0]]];
      if (textWidth(letter) <= room) forms[1] = letter;
    }
    const form = forms.filter((f) => f);
    if (form.length) {
      c.textBaseline = "middle";
      c.textAlign = "left";
      form.forEach((text, i, all) => {
        const at = y + h / 2 + (all.length > 1 ? (i ? 8 : -8) : 0);
        plate(c, text, x, at, { fill: css.paper, ink: css.ink });
      });
    }
    c.restore();
  });
}
function eachGap(lane, from, to, visit) {
  const P = lane.period;
  if (!P) return;
  const last = Math.min(Math.floor(to / P) + 1, lane.schedule.steps);
  for (let n = Math.max(0, Math.floor(from / P) - 1); n <= last; n++) {
    for (const gap of lane.gaps) {
      const a = Math.max(gap.start + n * P, lane.from), b = Math.min(gap.end + n * P, lane.to);
      if (b > a && b >= from && a <= to && visit(gap, a, b)) return;
    }
  }
}

function niceTick(span, room) {
  const rough = span / Math.max(2, room / 110), base = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * base).find((t) => t >= rough);
}
function axis(c) {
  c.fillStyle = css.paper;
  c.fillRect(0, 0, view.width, AXIS - 2);
  c.strokeStyle = css.line;
  c.beginPath(); c.moveTo(0, AXIS - 2.5); c.lineTo(view.width, AXIS - 2.5); c.lineWidth = 1; c.stroke();
  const tick = niceTick(view.to - view.from, view.width - GUTTER);
  const digits = Math.max(3, Math.ceil(Math.log10(Math.max(Math.abs(view.to), tick) / tick)) + 1);
  font(11);
  c.textBaseline = "middle";
  c.textAlign = "center";
  c.fillStyle = css.soft;
  for (let t = Math.ceil(view.from / tick) * tick; t <= view.to; t += tick) {
    const x = xOf(t), text = Math.abs(t) < tick / 2 ? "0" : duration(t, digits);
    c.fillRect(x - 0.5, AXIS - 7, 1, 5);
    if (x > GUTTER - 1 && x + textWidth(text) / 2 < view.width - 2) c.fillText(text, x, 13);
  }
  c.textAlign = "left";
  c.fillText("time", 12, 13);
}
