// Pointer and keyboard.

let pending = false;
function invalidate() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}

function limited(span) { const whole = EXTENT - BEGIN; return Math.min(Math.max(span, 20, whole * 1e-9), whole * 1.04); }
function clampView() {
  const whole = EXTENT - BEGIN, span = limited(view.to - view.from);
  const middle = (view.from + view.to) / 2;
  if (span !== view.to - view.from) { view.from = middle - span / 2; view.to = middle + span / 2; }
  const low = BEGIN - whole * 0.02, high = EXTENT + whole * 0.02;
  if (view.from < low) { view.to += low - view.from; view.from = low; }
  if (view.to > high) { view.from -= view.to - high; view.to = high; }
}
function zoom(by, at = (view.from + view.to) / 2) {
  // At a limit what is under the pointer stays there.
  by = limited((view.to - view.from) * by) / (view.to - view.from);
  view.from = at + (view.from - at) * by;
  view.to = at + (view.to - at) * by;
  clampView();
  invalidate();
}
function pan(by) { view.from += by; view.to += by; clampView(); invalidate(); }
function show(from, to) { view.from = from; view.to = to; clampView(); invalidate(); }
function fit() { const edge = (EXTENT - BEGIN) * 0.004; show(BEGIN - edge, EXTENT + edge); }
// Of a long trace the first steps.
const FIRST = 3;
function start() {
  const ends = SCHEDULES.map((s) => (s.measured ? Math.max(FIRST * s.step, s.measured.origins[FIRST] ?? s.extent) : s.extent));
  const end = Math.min(EXTENT, Math.max(...ends)), edge = (end - BEGIN) * 0.004;
  show(BEGIN - edge, end + edge);
}
function oneStep() {
  const s = view.selected ? view.selected.lane.schedule : SCHEDULES[0];
  const step = Math.min(s.steps - 1, Math.max(0, Math.floor((view.from + view.to) / 2 / s.step)));
  show((step - 0.01) * s.step, (step + 1.01) * s.step);
}

function rowAt(y) {
  const at = y + scroller.scrollTop;
  return y < AXIS ? null : ROWS.find((r) => at >= r.y && at < r.y + r.height);
}
// What is at a point: an operation, idle time, or nothing.
function hit(x, y) {
  const row = rowAt(y);
  if (!row || row.type !== "lane" || x < GUTTER) return null;
  const t = tOf(x), slack = 2.5 / scale();
  let best = null, off = Infinity;
  row.lane.visit(t - slack, t + slack, (p) => {
    const away = t < p.start ? p.start - t : t > p.end ? t - p.end : 0;
    if (away <= off) { off = away; best = p; }
  });
  if (best) return best;
  if (view.idle && row.lane.compute) {
    let found = null;
    eachGap(row.lane, t, t, (gap, a, b) => { found = { gap, schedule: row.schedule, length: b - a }; return true; });
    return found;
  }
  return null;
}

function choose(p) {
  view.selected = p;
  showSelected();
  if (p) document.querySelector("aside").scrollTop = 0;
  invalidate();
}
// Brings the selection into view.
function reveal() {
  const p = view.selected;
  if (!p) return;
  const row = ROWS.find((r) => r.type === "lane" && r.lane === p.lane), span = view.to - view.from;
  const room = scroller.clientHeight;
  if (row && (row.y < scroller.scrollTop + AXIS || row.y + row.height > scroller.scrollTop + room)) {
    scroller.scrollTop = row.y - room / 2;
  }
  const length = p.end - p.start;
  if (length * scale() < 3) { const to = (length * (view.width - GUTTER)) / 12; show((p.start + p.end) / 2 - to / 2, (p.start + p.end) / 2 + to / 2); }
  else if (p.end < view.from + span * 0.05 || p.start > view.to - span * 0.05) {
    const middle = (p.start + p.end) / 2;
    show(middle - span / 2, middle + span / 2);
  }
  invalidate();
}
function follow(p, link, back) {
  const s = p.lane.schedule, op = back ? link.op : link.to, step = back ? p.step - link.distance : p.step + link.distance;
  const lane = s.laneOf(op, p.lane), target = lane && lane.find(op, step);
  // Beyond the picture's steps: the same operation where it is shown.
  choose(target || instanceInView(s, op) || p);
  reveal();
}
// The instance of an operation nearest to the middle of the view.
function instanceInView(s, op) {
  const lane = s.lanes[s.ops.lane[op]], middle = (view.from + view.to) / 2;
  const near = Math.round((middle - s.ops.start[op]) / s.step);
  for (const step of [near, near - 1, near + 1, ...Array.from({ length: s.steps + 2 }, (_, i) => i - 1)]) {
    const p = lane.find(op, step);
    if (p && p.end > lane.from && p.start < lane.to) return p;
  }
  return null;
}
// The operation of a lane that is nearest to a time.
function nearest(lane, t) {
  let best = null, off = Infinity;
  const look = (reach) => lane.visit(t - reach, t + reach, (p) => {
    const away = t < p.start ? p.start - t : t > p.end ? t - p.end : 0;
    if (away < off) { off = away; best = p; }
    return p.start > t && off < Infinity;
  });
  for (let reach = (view.to - view.from) / 1000; !best && reach < EXTENT * 4; reach *= 4) look(reach);
  return best;
}
function move(by) {
  const p = view.selected, next = p.lane.neighbour(p.key, by);
  if (next) { choose(next); reveal(); }
}
function moveLane(by) {
  const p = view.selected, lanes = ROWS.filter((r) => r.type === "lane");
  for (let i = lanes.findIndex((r) => r.lane === p.lane) + by; i >= 0 && i < lanes.length; i += by) {
    const next = nearest(lanes[i].lane, (p.start + p.end) / 2);
    if (next) { choose(next); reveal(); return; }
  }
}
function followFirst(back) {
  const p = view.selected, s = p.lane.schedule;
  const links = (back ? s.links.into(p.op) : s.links.out(p.op));
  const link = links.find((l) => l.reason !== "queue") || links[0];
  if (link) follow(p, link, back);
}

// Search: every word must occur in the name, action or kind.
function search(query) {
  const words = query.toLowerCase().split(/\s+/).filter((w) => w);
  view.query = query;
  if (!words.length) view.matches = null;
  else {
    const sets = SCHEDULES.map(() => new Set()), list = [];
    for (const s of SCHEDULES) {
      for (let op = 0; op < s.ops.name.length; op++) {
        const text = `${s.ops.name[op]} ${DATA.texts[s.ops.action[op]]} ${KINDS[s.ops.kind[op]].name}`.toLowerCase();
        if (words.every((w) => text.includes(w))) { sets[s.index].add(op); list.push([s, op]); }
      }
    }
    const cache = new Map();
    const perLane = (lane) => {
      if (!cache.has(lane)) {
        const found = [];
        for (let i = 0; i < lane.op.length; i++) if (sets[lane.schedule.index].has(lane.op[i])) found.push(i);
        cache.set(lane, found);
      }
      return cache.get(lane);
    };
    view.matches = { sets, list, perLane, at: -1 };
  }
  found();
  invalidate();
}
function found() {
  const m = view.matches;
  document.getElementById("found").textContent = !m ? "" : m.list.length ? (m.at < 0 ? `${m.list.length} found` : `${m.at + 1} of ${m.list.length}`) : "none";
}
function nextMatch(by) {
  const m = view.matches;
  if (!m || !m.list.length) return;
  m.at = m.at < 0 ? (by > 0 ? 0 : m.list.length - 1) : (m.at + by + m.list.length) % m.list.length;
  const [s, op] = m.list[m.at], p = instanceInView(s, op);
  if (p) { choose(p); reveal(); }
  found();
}

function toggle(name) {
  view[name] = !view[name];
  document.getElementById(name).setAttribute("aria-pressed", String(view[name]));
  resize();
}
function help(open = document.getElementById("keys").hidden) {
  document.getElementById("keys").hidden = !open;
  document.getElementById("help").setAttribute("aria-expanded", String(open));
  resize();
}
function clear() {
  if (!tip.hidden) { showTip(null); view.hover = null; }
  if (!document.getElementById("keys").hidden) help(false);
  else if (view.selected) choose(null);
  else if (view.matches) { document.getElementById("search").value = ""; search(""); }
  else if (view.kind >= 0) { view.kind = -1; legend(); }
  invalidate();
}

function listen() {
  let drag = null;
  const local = (e) => { const r = canvas.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
  canvas.addEventListener("wheel", (e) => {
    const unit = e.deltaMode === 1 ? 30 : 1, [x] = local(e);
    if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan(((e.deltaX || e.deltaY) * unit) / scale());
    else if (x < GUTTER) return;
    else zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY * unit * 0.0022))), tOf(x));
    e.preventDefault();
  }, { passive: false });
  const pointers = new Map();
  canvas.addEventListener("pointerdown", (e) => {
    if (e.button > 0) return;
    const [x, y] = local(e);
    pointers.set(e.pointerId, [x, y]);
    canvas.setPointerCapture(e.pointerId);
    drag = { x, y, moved: false };
  });
  canvas.addEventListener("pointermove", (e) => {
    const [x, y] = local(e), old = pointers.get(e.pointerId);
    if (old && drag) {
      if (pointers.size === 2) {
        const other = [...pointers].find(([id]) => id !== e.pointerId)[1];
        const before = Math.abs(old[0] - other[0]), after = Math.abs(x - other[0]);
        if (before > 4 && after > 4) zoom(before / after, tOf((x + other[0]) / 2));
        drag.moved = true;
      } else if (drag.moved || Math.hypot(x - drag.x, y - drag.y) > 3) {
        drag.moved = true;
        canvas.classList.add("drag");
        pan(-(x - old[0]) / scale());
        scroller.scrollTop -= y - old[1];
        showTip(null);
      }
      pointers.set(e.pointerId, [x, y]);
      return;
    }
    const target = hit(x, y), same = (a, b) => a && b && a.lane === b.lane && a.op === b.op && a.step === b.step && a.gap === b.gap;
    canvas.classList.toggle("over", !!target && !target.gap);
    if (!same(target, view.hover)) { view.hover = target; invalidate(); }
    showTip(target, e.clientX, e.clientY);
  });
  const end = (e) => {
    pointers.delete(e.pointerId);
    canvas.classList.remove("drag");
    if (e.type === "pointerup" && drag && !drag.moved) {
      const target = hit(...local(e));
      // The panel says it all.
      showTip(null);
      if (target && target.gap) {
        const s = target.schedule;
        if (target.gap.waits) { choose(instanceInView(s, target.gap.waits[0])); }
      } else choose(target);
    }
    if (!pointers.size) drag = null;
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => { view.hover = null; showTip(null); invalidate(); });
  canvas.addEventListener("dblclick", (e) => zoom(0.4, tOf(local(e)[0])));
  scroller.addEventListener("scroll", invalidate);

  // Keys of the picture work wherever the focus is, from the start; only controls keep what is theirs.
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.target.tagName === "INPUT" || (e.key === "Enter" && e.target.tagName === "BUTTON")) return;
    const quarter = (view.to - view.from) / 6, moving = view.selected && !e.shiftKey;
    // What the picture cannot scroll is left to the page and the panel.
    const upright = (by) => {
      if (moving) { moveLane(by); return true; }
      const before = scroller.scrollTop;
      if (!e.target.closest("aside")) scroller.scrollTop += 60 * by;
      return scroller.scrollTop !== before;
    };
    const keys = {
      ArrowLeft: () => (moving ? move(-1) : pan(-quarter)), ArrowRight: () => (moving ? move(1) : pan(quarter)),
      ArrowUp: () => upright(-1), ArrowDown: () => upright(1),
      Enter: () => {
        if (view.selected) { const first = document.querySelector("#selected .links button"); if (first) first.focus(); return; }
        const lane = SCHEDULES[0].lanes.find((l) => l.compute) || SCHEDULES[0].lanes[0];
        const p = nearest(lane, (view.from + view.to) / 2);
        if (p) { choose(p); reveal(); }
      },
      b: () => view.selected && followFirst(true), f: () => view.selected && followFirst(false),
      Home: () => pan(BEGIN - EXTENT), End: () => pan(EXTENT - BEGIN),
    };
    if (keys[e.key] && keys[e.key]() !== false) e.preventDefault();
  });
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "Escape") { clear(); if (document.activeElement !== document.body) canvas.focus(); return; }
    if (e.target.tagName === "INPUT") return;
    const keys = {
      "+": () => zoom(1 / 1.5), "=": () => zoom(1 / 1.5), "-": () => zoom(1.5), 0: fit, 1: oneStep,
      "/": () => document.getElementById("search").focus(), n: () => nextMatch(1), N: () => nextMatch(-1),
      c: () => toggle("cycle"), i: () => toggle("idle"), m: () => toggle("memory"), "?": () => help(),
    };
    if (keys[e.key]) { keys[e.key](); e.preventDefault(); }
  });
  const on = (id, f) => document.getElementById(id).addEventListener("click", f);
  on("in", () => zoom(1 / 1.6)); on("out", () => zoom(1.6)); on("fit", fit); on("one", oneStep);
  on("next", () => nextMatch(1)); on("previous", () => nextMatch(-1)); on("help", () => help());
  for (const name of ["cycle", "idle", "memory"]) on(name, () => toggle(name));
  const input = document.getElementById("search");
  input.addEventListener("input", () => search(input.value));
  input.addEventListener("keydown", (e) => { if (e.key === "Enter") { nextMatch(e.shiftKey ? -1 : 1); e.preventDefault(); } });
}
