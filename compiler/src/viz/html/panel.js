// Everything beside the picture: totals, the selected operation, the tooltip, differences to a trace, the legend.

// An element with a class, text and children; text is never parsed.
function el(name, options = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "text") e.textContent = value;
    else if (key === "class") e.className = value;
    else if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null) e.setAttribute(key, value);
  }
  e.append(...children.filter((x) => x !== null));
  return e;
}
const row = (name, value, extra) => el("tr", {}, el("th", { scope: "row", text: name }), el("td", { class: "wrap" }, value, extra || ""));
function chip(kind) {
  const k = KINDS[kind];
  return el("span", { class: "chip", text: k.name, style: `background:${k.colour};color:${k.ink}` });
}

function totals() {
  const box = document.getElementById("totals");
  box.replaceChildren();
  SCHEDULES.forEach((s, i) => {
    const bound = Math.max(s.resourceBound, s.recurrenceBound, s.jointBound);
    const table = el("table", {}, el("tbody", {},
      row("resource bound", duration(s.resourceBound), ` (${s.resource})`),
      row("recurrence bound", duration(s.recurrenceBound), s.cycle.length ? ` (${s.cycle.length} operations over ${s.cycle.reduce((a, c) => a + c[2], 0)} batch${s.cycle.reduce((a, c) => a + c[2], 0) === 1 ? "" : "es"})` : " (no cycle)"),
      ...(s.jointBound > 0 ? [row("joint bound", duration(s.jointBound), " (a chain of transfers with compute's work beside it)")] : []),
      row("bubble", duration(s.bubble), ` (compute idles ${percent(s.bubble / s.step)})`),
      row("memory", amount(s.memory.reserved, "B"), ` a rank, ${s.inFlight} batch${s.inFlight === 1 ? "" : "es"} in flight`),
      ...s.limits.map((l) => row("limit", l))));
    const scale = Math.max(s.step, bound);
    const bar = el("div", { class: "bar", role: "img", "aria-label": `the greater bound is ${percent(bound / s.step)} of the step` },
      el("i", { style: `width:${(100 * bound) / scale}%` }), el("b", { style: `left:calc(${(100 * s.step) / scale}% - 2px)` }));
    const other = i > 0 ? SCHEDULES[0] : null;
    const compared = other ? el("p", { class: "small", text: compare(other, s) }) : null;
    const above = bound > 0 ? Math.max(0, s.step / bound - 1) : 0;
    box.append(el("div", { class: "totals" },
      el("h2", { text: s.label }),
      el("p", { class: "step", text: duration(s.step, 4) }),
      el("p", { class: "small soft", style: "margin:0", text: `predicted step, ${percent(above)} above the greater bound` }),
      bar, table, compared));
  });
}
function compare(a, b) {
  const ratio = a.step / b.step;
  if (Math.abs(ratio - 1) < 0.0005) return `as fast as ${a.label}`;
  return ratio > 1 ? `${ratio.toFixed(3)} times as fast as ${a.label}` : `${(1 / ratio).toFixed(3)} times as slow as ${a.label}`;
}

function sizes(s, op) {
  const o = s.ops, list = [];
  const add = (name, sym, value, unit) => {
    if (o[value][op] > 0 || DATA.texts[o[sym][op]] !== "0") list.push([name, DATA.texts[o[sym][op]], amount(o[value][op], unit)]);
  };
  add("work", "flopsText", "flops", "flop");
  add("memory traffic", "bytesText", "bytes", "B");
  add("leaves the rank", "wireText", "wire", "B");
  return list;
}
function batchText(s, op, step) {
  const m = s.ops.microbatch ? s.ops.microbatch[op] : -1, stage = s.ops.stage[op];
  const part = m >= 0 ? `, microbatch ${m} of ${s.microbatches}` : "";
  const off = stage === 0 ? "the step's own" : stage > 0 ? `${stage} ahead of the step` : `${-stage} behind the step`;
  return `batch ${s.batch(op, step)}${part} in step ${step + s.first} (${off})`;
}
// Facts of an instance: pairs of a name and a text.
function facts(p) {
  const s = p.lane.schedule, o = s.ops, op = p.op, list = [];
  list.push(["batch", batchText(s, op, p.step)]);
  list.push(["engine", `${s.lanes[o.lane[op]].name}, priority ${o.priority[op]}` + (o.chunk && o.chunk[op] ? `, in chunks of ${amount(o.chunk[op], "B")}` : "")]);
  list.push(["planned", `${duration(o.time[op])}${o.lag[op] ? `, then ${duration(o.lag[op])} until others may start` : ""}, from ${duration(o.start[op], 4)} into the step`]);
  if (o.class[op]) list.push(["rows", DATA.texts[o.class[op]]]);
  const d = s.measured && s.differences[op];
  if (p.lane.measured) list.push(["measured", `${duration(p.end - p.start)} on rank ${p.lane.rank}, ${signed(p.end - p.start - o.time[op] - o.lag[op])} to the prediction`]);
  if (d) list.push(["difference", `takes ${signed(d.time)}, starts ${signed(d.start)} (medians of ${d.count})`]);
  for (const [name, symbols, value] of sizes(s, op)) list.push([name, `${value} = ${symbols}`]);
  return list;
}
function linkText(s, l, back) {
  return back ? s.ops.name[l.op] + stepsBefore(l.distance) : s.ops.name[l.to] + stepsAfter(l.distance);
}

const tip = document.getElementById("tip");
function showTip(target, x, y) {
  if (!target) { tip.hidden = true; return; }
  tip.replaceChildren();
  if (target.gap) {
    const { gap, schedule: s, length } = target;
    tip.append(el("strong", { text: `compute idles ${duration(length)}` }));
    if (gap.waits) tip.append(el("p", { text: `waits for ${s.ops.name[gap.waits[0]]}${stepsBefore(gap.waits[1])}` }), el("p", {}, chip(s.ops.kind[gap.waits[0]])));
    if (gap.op >= 0) tip.append(el("p", { class: "soft", text: `then runs ${s.ops.name[gap.op]}` }));
  } else {
    const s = target.lane.schedule, o = s.ops, op = target.op;
    tip.append(el("strong", { text: o.name[op] }), el("p", {}, chip(o.kind[op]), el("span", { class: "soft", text: DATA.texts[o.action[op]] + (o.cycle[op] ? ", on the longest cycle" : "") })));
    tip.append(el("table", {}, el("tbody", {}, ...facts(target).map(([a, b]) => row(a, b)))));
    const links = s.links.into(op).filter((l) => l.reason !== "queue" || l.stated);
    if (links.length) {
      tip.append(el("table", {}, el("tbody", {}, ...links.slice(0, 6).map((l, i) => row(i ? "" : "needs", linkText(s, l, true) + ` (distance ${l.distance})`)),
        ...(links.length > 6 ? [row("", `and ${links.length - 6} more`)] : []))));
    }
    tip.append(el("p", {}, el("em", { text: DATA.texts[o.reason[op]] })));
  }
  tip.hidden = false;
  const r = tip.getBoundingClientRect();
  tip.style.left = Math.max(8, x + 18 + r.width > innerWidth ? x - r.width - 14 : x + 18) + "px";
  tip.style.top = Math.max(8, Math.min(y + 16, innerHeight - r.height - 8)) + "px";
}

const MOST_LINKS = 200;
function linkList(s, p, links, back) {
  const item = (l) => el("li", {}, el("button", { type: "button", onclick: () => follow(p, l, back) },
    linkText(s, l, back), " ", el("small", { text: `distance ${l.distance}: ${WHY[l.reason]}` + (l.stated && l.reason !== "order" ? ", stated" : "") })));
  const list = el("ul", { class: "links" }, ...links.slice(0, MOST_LINKS).map(item));
  if (links.length > MOST_LINKS) list.append(el("li", { class: "soft", text: `and ${links.length - MOST_LINKS} more` }));
  return list;
}
function showSelected() {
  const box = document.getElementById("selected"), p = view.selected;
  box.replaceChildren();
  box.classList.toggle("none", !p);
  if (!p) { box.append(el("p", { class: "soft", style: "margin:0", text: "Select an operation to see its size, its dependencies and the reason for its place." })); return; }
  const s = p.lane.schedule, o = s.ops, op = p.op;
  box.append(el("h2", { text: o.name[op] }),
    el("p", { style: "margin:0 0 6px" }, chip(o.kind[op]), el("span", { class: "soft", text: DATA.texts[o.action[op]] + (o.cycle[op] ? ", on the longest cycle" : "") })),
    el("table", {}, el("tbody", {}, ...facts(p).map(([a, b]) => row(a, b)), row("reason", DATA.texts[o.reason[op]]))));
  const into = s.links.into(op), out = s.links.out(op);
  box.append(el("h3", { text: `Needs (${into.length})` }), linkList(s, p, into, true),
    el("h3", { text: `Needed by (${out.length})` }), linkList(s, p, out, false));
}

const MOST_DIFFERENCES = 250;
function differences() {
  const box = document.getElementById("differences");
  const traced = SCHEDULES.filter((s) => s.measured);
  box.hidden = traced.length === 0;
  for (const s of traced) {
    const m = s.measured, list = s.differences.map((d, op) => ({ op, d })).filter((x) => x.d);
    list.sort((a, b) => Math.abs(b.d.time) - Math.abs(a.d.time) || a.op - b.op);
    const body = list.slice(0, MOST_DIFFERENCES).map(({ op, d }) => el("tr", {},
      el("td", {}, el("button", { type: "button", class: "linkish", text: s.ops.name[op], onclick: () => { choose(instanceInView(s, op)); reveal(); } }),
        el("span", { class: "soft small", text: `${duration(s.ops.time[op] + s.ops.lag[op])} planned, ${duration(d.measured)} measured` })),
      el("td", { class: "number", text: signed(d.time) })));
    box.append(el("h2", { text: "Measured against predicted" }),
      el("p", { class: "small", text: `Step ${m.step === null ? "measured once" : duration(m.step, 4)}, predicted ${duration(s.step, 4)}${m.step === null ? "" : ` (${signed(m.step - s.step)})`}. ${m.ranks.length} rank${m.ranks.length === 1 ? "" : "s"}, ${m.steps} traced step${m.steps === 1 ? "" : "s"}; medians. Starts are compared within a step.` }),
      el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "operation" }), el("th", { scope: "col", class: "number", text: "difference" }))), el("tbody", {}, ...body)));
    if (list.length > MOST_DIFFERENCES) box.append(el("p", { class: "soft small", text: `and ${list.length - MOST_DIFFERENCES} smaller ones` }));
  }
}

function legend() {
  const list = document.getElementById("legend");
  list.replaceChildren();
  KINDS.forEach((k, i) => {
    if (!SCHEDULES.some((s) => s.ops.kind.includes(i))) return;
    const swatch = el("canvas", { width: 60, height: 36, "aria-hidden": "true" }), c = swatch.getContext("2d");
    c.scale(2, 2);
    c.fillStyle = fills[i][0].fill;
    c.fillRect(0, 0, 30, 18);
    if (tiles[i]) { c.fillStyle = tiles[i]; c.fillRect(0, 0, 30, 18); }
    c.fillStyle = fills[i][0].fill; c.fillRect(10, 3, 11, 12);
    c.fillStyle = fills[i][0].ink; c.font = "600 11px " + css.font; c.textAlign = "center"; c.textBaseline = "middle";
    c.fillText(k.letter, 15.5, 9.5);
    list.append(el("li", {}, el("button", { type: "button", title: k.meaning, "aria-pressed": String(view.kind === i),
      onclick: () => { view.kind = view.kind === i ? -1 : i; legend(); invalidate(); list.querySelectorAll("button")[[...list.children].findIndex((x) => x.textContent === k.name)]?.focus(); } }, swatch, k.name)));
  });
  const note = (text) => list.append(el("li", { class: "note", text }));
  note("lighter: each second batch");
  if (SCHEDULES.some((s) => s.cycle.length)) note("bar beneath: longest cycle");
}
