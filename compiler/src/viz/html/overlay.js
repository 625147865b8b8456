// What lies over the lanes: marks of a search, step boundaries, the longest cycle, arrows of dependencies; and memory.

// Marks above what a search found, however small it is.
function marks(c, row) {
  const { lane, schedule: s, y } = row;
  c.fillStyle = css.match;
  let drawn = 0, last = -9;
  const list = view.matches.perLane(lane);
  const mark = (t) => {
    const x = xOf(t);
    if (x < GUTTER || x > view.width || Math.abs(x - last) < 1.5) return;
    last = x;
    c.beginPath(); c.moveTo(x, y + 5); c.lineTo(x - 4, y - 2); c.lineTo(x + 4, y - 2); c.fill();
    drawn++;
  };
  if (lane.measured) {
    lane.visit(view.from, view.to, (p) => { if (view.matches.sets[s.index].has(p.op)) mark((p.start + p.end) / 2); return drawn > 4000; });
    return;
  }
  for (let n = -1; n < s.steps && drawn < 4000; n++) {
    for (const i of list) {
      const t = (lane.start[i] + lane.end[i]) / 2 + n * lane.period;
      if (t >= lane.from && t <= lane.to) mark(t);
      if (drawn > 4000) break;
    }
  }
}

function boundaries(c) {
  for (const s of SCHEDULES) {
    const mine = ROWS.filter((r) => r.schedule === s), planned = mine.filter((r) => r.type !== "lane" || !r.lane.measured);
    const top = mine[0].y + HEAD - 6;
    const firstRun = mine.find((r) => r.small), bottom = firstRun ? firstRun.y : lowest(planned);
    c.strokeStyle = css.soft;
    c.lineWidth = 1;
    c.setLineDash([3, 3]);
    font(11, 600);
    c.textAlign = "left";
    c.textBaseline = "middle";
    const lines = (times, from, to, name) => times.forEach((t, n) => {
      const x = Math.round(xOf(t)) + 0.5;
      if (x < GUTTER || x > view.width) return;
      c.beginPath(); c.moveTo(x, from); c.lineTo(x, to); c.stroke();
      const room = Math.min(n + 1 < times.length ? (times[n + 1] - t) * scale() - 10 : Infinity, view.width - x - 4);
      const text = [`${name} ${n + s.first}`, String(n + s.first)].find((text) => textWidth(text) <= room);
      if (text && (n + 1 < times.length || name !== "step")) {
        c.fillStyle = css.soft;
        c.fillText(text, x + 4, from - 7);
      }
    });
    lines(Array.from({ length: s.steps + 1 }, (_, n) => n * s.step), top, bottom, "step");
    if (s.measured && firstRun) {
      const last = mine[mine.length - 1], end = last.type === "memory" ? last.y - 6 : lowest(mine);
      c.strokeStyle = css.accent;
      lines(s.measured.origins, firstRun.y + firstRun.height - 4, end, "measured step");
    }
    c.setLineDash([]);
  }
}
// The lowest line of rows, without the caption of memory.
function lowest(list) {
  const last = list[list.length - 1];
  return last.y + last.height - (last.type === "memory" ? CAPTION : 4);
}

// Edges of the longest cycle between lanes, over every step in view.
function cycleEdges(c, top) {
  c.strokeStyle = css.ink;
  c.lineWidth = 1.2;
  for (const s of SCHEDULES) {
    const n = s.cycle.length;
    if (!n || s.cycle.length * s.steps > 20000) continue;
    const rowOf = new Map(ROWS.filter((r) => r.type === "lane" && r.schedule === s && !r.lane.measured).map((r) => [r.lane.index, r]));
    c.beginPath();
    for (let i = 0; i < n; i++) {
      const [op, distance] = s.cycle[i], [before] = s.cycle[(i + n - 1) % n];
      const a = rowOf.get(s.ops.lane[before]), b = rowOf.get(s.ops.lane[op]);
      if (!a || !b || (a === b && s.ops.lane[before] === s.ops.lane[op])) continue;
      for (let step = -1; step <= s.steps; step++) {
        const t0 = s.ops.end[before] + (step - distance) * s.step, t1 = s.ops.start[op] + step * s.step;
        if (t0 < 0 || t1 > s.steps * s.step || t1 < view.from || t0 > view.to) continue;
        const x0 = xOf(t0), x1 = xOf(t1);
        // From bar to bar.
        c.moveTo(x0, a.y + a.height - 6);
        c.lineTo(x1, b.y + b.height - 6);
      }
    }
    c.save();
    const clip = new Path2D();
    clip.rect(GUTTER, top + AXIS, view.width - GUTTER, view.height);
    c.clip(clip);
    c.stroke();
    c.restore();
  }
}

// From what the selected operation needs, and to what needs it.
function arrows(c) {
  const p = view.selected, s = p.lane.schedule;
  const rowOf = (lane) => ROWS.find((r) => r.type === "lane" && r.lane === lane);
  const here = rowOf(p.lane);
  if (!here) return;
  c.save();
  c.beginPath();
  c.rect(GUTTER, AXIS, view.width - GUTTER, ROWS.total);
  c.clip();
  const middle = (row) => row.y + (row.height - 4) / 2;
  const arrow = (from, to, rowFrom, rowTo, dashed) => {
    const x0 = xOf(from), x1 = xOf(to), y0 = middle(rowFrom), y1 = middle(rowTo);
    if (Math.max(x0, x1) < GUTTER - 50 || Math.min(x0, x1) > view.width + 50) return;
    const bend = Math.min(60, Math.abs(x1 - x0) / 2 + 14), lift = rowFrom === rowTo ? -here.height * 0.75 : 0;
    const path = () => {
      c.beginPath();
      c.moveTo(x0, y0);
      c.bezierCurveTo(x0 + bend, y0 + lift, x1 - bend, y1 + lift, x1 - 2, y1);
      c.stroke();
    };
    c.setLineDash([]);
    c.strokeStyle = css.paper; c.lineWidth = 5; path();
    c.setLineDash(dashed ? [6, 4] : []);
    c.strokeStyle = css.accent; c.lineWidth = 2.2; path();
    c.setLineDash([]);
    c.fillStyle = css.accent;
    c.beginPath(); c.moveTo(x1, y1); c.lineTo(x1 - 9, y1 - 5); c.lineTo(x1 - 9, y1 + 5); c.fill();
  };
  const instance = (op, step) => {
    const lane = s.laneOf(op, p.lane), row = lane && rowOf(lane);
    if (!row) return null;
    if (lane.measured) { const q = lane.find(op, step); return q && { row, start: q.start, end: q.end }; }
    return { row, start: s.ops.start[op] + step * s.step, end: s.ops.end[op] + step * s.step };
  };
  const me = instance(p.op, p.step);
  const draw = (links, back) => {
    for (const l of links.filter((l) => l.reason !== "queue").slice(0, 60)) {
      const other = back ? instance(l.op, p.step - l.distance) : instance(l.to, p.step + l.distance);
      if (!other || !me) continue;
      if (back) arrow(other.end, me.start, other.row, me.row, false);
      else arrow(me.end, other.start, me.row, other.row, true);
    }
  };
  draw(s.links.out(p.op), false);
  draw(s.links.into(p.op), true);
  c.restore();
}

const peak = (m) => m.bytes.reduce((a, b) => Math.max(a, b), 0);
const MEMORY_TOP = Math.max(...SCHEDULES.map((s) => Math.max(s.memory.reserved - base(s.memory), peak(s.memory)))) * 1.08 || 1;
function base(m) { return m.tables + m.parameters + m.inputs; }
function memoryRow(c, row) {
  const { schedule: s, y } = row, m = s.memory, h = row.height - CAPTION, bottom = y + h;
  c.fillStyle = css.lane;
  c.fillRect(GUTTER, y, view.width - GUTTER, h);
  const yOf = (bytes) => bottom - (bytes / MEMORY_TOP) * (h - 4);
  c.save();
  c.beginPath();
  c.rect(GUTTER, y, view.width - GUTTER, h + 2);
  c.clip();
  c.beginPath();
  const P = s.step, right = Math.min(xOf(P * s.steps), view.width + 2), left = Math.max(xOf(0), GUTTER - 2);
  const from = Math.max(0, tOf(left)), n = m.times.length;
  // The level at the left edge, then the changes in view; of those within a pixel the highest level counts.
  let period = Math.min(s.steps - 1, Math.floor(from / P)), i = upper(m.times, from - period * P);
  let level = m.bytes[i > 0 ? i - 1 : n - 1], lastX = left, high = 0;
  c.moveTo(left, bottom);
  c.lineTo(left, yOf(level));
  for (; period < s.steps; period++, i = 0) {
    for (; i < n; i++) {
      const x = xOf(m.times[i] + period * P);
      if (x > right) break;
      if (x - lastX < 0.5) { high = Math.max(high, m.bytes[i]); level = m.bytes[i]; continue; }
      if (high > 0) { c.lineTo(lastX, yOf(high)); c.lineTo(lastX, yOf(level)); }
      c.lineTo(x, yOf(level));
      c.lineTo(x, yOf(m.bytes[i]));
      level = m.bytes[i]; lastX = x; high = 0;
    }
    if (i < n) break;
  }
  c.lineTo(right, yOf(level));
  c.lineTo(right, bottom);
  c.closePath();
  c.globalAlpha = 0.28; c.fillStyle = css.accent; c.fill();
  c.globalAlpha = 1; c.strokeStyle = css.accent; c.lineWidth = 1.5; c.stroke();
  const reserved = yOf(m.reserved - base(m));
  c.setLineDash([5, 4]);
  c.strokeStyle = css.soft;
  c.beginPath(); c.moveTo(GUTTER, reserved); c.lineTo(right, reserved); c.stroke();
  c.setLineDash([]);
  c.restore();
  c.fillStyle = css.paper;
  c.fillRect(0, y, GUTTER, row.height);
  c.textAlign = "left";
  c.textBaseline = "middle";
  font(13, 600);
  c.fillStyle = css.ink;
  c.fillText("memory", 12, y + h / 2 - 14);
  font(11);
  c.fillStyle = css.soft;
  c.fillText(`peak ${amount(s.peak ??= peak(m), "B")}`, 12, y + h / 2 + 2);
  c.fillText(`set aside ${amount(m.reserved - base(m), "B")}`, 12, y + h / 2 + 17);
  const [tables, dense, inputs] = [m.tables, m.parameters, m.inputs].map((bytes) => amount(bytes, "B"));
  const brief = `above ${tables} tables, ${dense} dense, ${inputs} inputs`;
  // Narrow windows get less, and the room beneath the lane's name.
  const forms = [[GUTTER + 6, `buffers alive, above ${tables} tables, ${dense} dense parameters and ${inputs} inputs; dashed: set aside`],
    [GUTTER + 6, brief], [12, brief], [12, `above ${amount(base(m), "B")} that do not change`]];
  const [x, text] = forms.find(([x, text]) => textWidth(text) <= view.width - x - 6) || forms[forms.length - 1];
  c.fillText(text, x, bottom + 9);
}
