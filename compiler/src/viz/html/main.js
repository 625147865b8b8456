// Starts the page.

function resize() {
  ROWS = rows();
  const ratio = devicePixelRatio || 1;
  view.width = view.printing ? 1080 : scroller.clientWidth;
  view.height = view.printing ? ROWS.total : Math.max(120, Math.min(scroller.clientHeight, ROWS.total));
  canvas.width = Math.round(view.width * ratio);
  canvas.height = Math.round(view.height * ratio);
  canvas.style.height = view.height + "px";
  document.getElementById("tall").style.height = Math.max(0, ROWS.total - view.height) + "px";
  draw();
}
function recolour() {
  theme();
  legend();
  invalidate();
}

for (const s of SCHEDULES) {
  if (!s.measured) continue;
  s.differences = s.measured.differences.map((d) => d && { start: d[0], time: d[1], measured: d[2], count: d[3] });
}
theme();
legend();
totals();
showSelected();
differences();
listen();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
new ResizeObserver(() => resize()).observe(scroller);
// On paper: every row, in the light theme. The print style sheet applies only after `beforeprint`, too late for what is
// drawn there: a class takes the dark colours away before.
function print(on) {
  view.printing = on;
  document.documentElement.classList.toggle("printing", on);
  theme();
  resize();
}
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
start();
resize();

// For tests and for whoever opens the console.
window.fsviz = {
  view, schedules: SCHEDULES, kinds: KINDS, rows: () => ROWS, hit, draw, zoom, pan, fit, show, search, choose, duration,
  // Where an instance is on the page, in pixels from the window's corner.
  place(name, step = 1, schedule = 0) {
    const s = SCHEDULES[schedule], op = s.ops.name.indexOf(name);
    const p = s.lanes[s.ops.lane[op]].find(op, step), row = ROWS.find((r) => r.lane === p.lane);
    const r = canvas.getBoundingClientRect();
    return { x: r.left + xOf((p.start + p.end) / 2), y: r.top + row.y + row.height / 2 - scroller.scrollTop };
  },
  selected() {
    const p = view.selected;
    return p && { name: p.lane.schedule.ops.name[p.op], step: p.step, batch: p.lane.schedule.batch(p.op, p.step), lane: p.lane.name, measured: p.lane.measured };
  },
  ready: true,
};
