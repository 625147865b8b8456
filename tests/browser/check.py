#!/usr/bin/env python3
"""Opens the pages of `fsc viz` in a headless Chromium and uses them as people would.

    check.py FOLDER [--pictures TO] [--large PAGE]

FOLDER holds one.html (the movielens example, pec), two.html (serial and pec on a slow link) and run.html (with a
trace). Screenshots go to TO. Without Chromium or websocket-client it says so and exits with status 3.
"""

import argparse
import os
import sys

try:
    from chromium import Chromium
except ImportError as e:
    print(f"skipped: {e} (pip install websocket-client)")
    sys.exit(3)

failures = []


def check(what, holds, detail=""):
    print(f"  {'ok    ' if holds else 'FAILED'} {what}" + (f": {detail}" if detail and not holds else ""))
    if not holds:
        failures.append(what)


def open_page(c, path, scheme="light", width=1440, height=820, ratio=1):
    c.size(width, height, ratio)
    c.media(scheme)
    seconds = c.open(os.path.abspath(path))
    quiet(c, f"{os.path.basename(path)} loads")
    return seconds


def quiet(c, what):
    check(f"{what} without console errors", not c.errors, "; ".join(c.errors))
    loads = [u for u in c.requests if not u.startswith(("file:", "data:"))]
    check(f"{what} without the network", not loads, "; ".join(loads))


def place(c, name, step=1, schedule=0):
    return c.eval(f"fsviz.place({name!r}, {step}, {schedule})")


def selected(c):
    return c.eval("fsviz.selected()") or {}


def text(c, selector):
    return c.eval(f"document.querySelector({selector!r})?.textContent ?? ''")


def span(c):
    return c.eval("[fsviz.view.from, fsviz.view.to]")


def painted(c, x, y):
    """Colour of a point of the canvas."""
    return c.eval(f"""(() => {{ const v = document.getElementById('canvas'), r = v.getBoundingClientRect(), d = devicePixelRatio;
        return [...v.getContext('2d').getImageData(({x} - r.left) * d, ({y} - r.top) * d, 1, 1).data].slice(0, 3); }})()""")


def one(c, page):
    print("one schedule")
    open_page(c, page)
    canvas = c.eval("(() => { const r = document.getElementById('canvas').getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()")
    check("the picture fills the window", canvas[2] > 900 and canvas[3] > 250, str(canvas))
    check("every operation has a place", c.eval("""fsviz.schedules[0].ops.name.every((_, op) => { const s = fsviz.schedules[0];
        const p = s.lanes[s.ops.lane[op]].find(op, 1); return p && p.op === op && p.end >= p.start; })"""))
    for label in ("predicted step", "resource bound", "recurrence bound", "bubble", "memory"):
        check(f"the panel has the {label}", label in text(c, "#totals"))
    legend = text(c, "#legend")
    for kind in ("forward", "backward", "input dist", "OL rows", "NOL rows", "gradient", "all-reduce", "host"):
        check(f"the legend has {kind}", kind in legend)

    print("hover")
    c.key("1")
    p = place(c, "layers.0.uvqk.linear")
    c.hover(p["x"], p["y"])
    tip = text(c, "#tip")
    check("the tooltip shows", not c.eval("document.getElementById('tip').hidden"))
    for part in ("layers.0.uvqk.linear", "forward", "batch 1", "compute, priority", "flop =", "T0", "needs", "distance 0", "longest cycle"):
        check(f"the tooltip says {part!r}", part in tip, tip)
    check("the tooltip is in the window", c.eval("(() => { const r = document.getElementById('tip').getBoundingClientRect(); return r.left >= 0 && r.top >= 0 && r.right <= innerWidth && r.bottom <= innerHeight; })()"))
    c.hover(canvas[0] + 5, canvas[1] + 5)
    check("the tooltip goes", c.eval("document.getElementById('tip').hidden"))

    print("click")
    p = place(c, "movies.apply")
    c.click(p["x"], p["y"])
    check("a click selects", selected(c).get("name") == "movies.apply", str(selected(c)))
    box = text(c, "#selected")
    for part in ("movies.apply", "reuse distance 1", "movies.all_to_all_grads", "Needed by", "movies.gather", "reason"):
        check(f"the selection says {part!r}", part in box, box)
    check("the selection is announced", c.eval("document.getElementById('selected').getAttribute('aria-live')") == "polite")
    target = c.eval("[...document.querySelectorAll('#selected .links button')].find((b) => b.textContent.startsWith('movies.all_to_all_grads'))?.click() === undefined && fsviz.selected().name")
    check("a dependency is followed back", target == "movies.all_to_all_grads", str(target))
    c.eval("[...document.querySelectorAll('#selected .links button')].find((b) => b.textContent.startsWith('movies.apply')).click()")
    check("and forward", selected(c).get("name") == "movies.apply")
    c.eval("[...document.querySelectorAll('#selected .links:last-child button')].find((b) => b.textContent.startsWith('movies.gather ')).click()")
    check("to the next batch", selected(c).get("name") == "movies.gather" and selected(c).get("batch") == 2, str(selected(c)))

    print("zoom and pan")
    c.key("0")
    before = span(c)
    x, y = canvas[0] + canvas[2] / 2, canvas[1] + 150
    middle = c.eval(f"fsviz.view.from + ({x - canvas[0]} - 128) / (fsviz.view.width - 128) * (fsviz.view.to - fsviz.view.from)")
    c.wheel(x, y, -300)
    after = span(c)
    check("the wheel zooms in", after[1] - after[0] < 0.7 * (before[1] - before[0]), f"{before} {after}")
    now = c.eval(f"fsviz.view.from + ({x - canvas[0]} - 128) / (fsviz.view.width - 128) * (fsviz.view.to - fsviz.view.from)")
    check("around the pointer", abs(now - middle) < 0.002 * (before[1] - before[0]), f"{middle} {now}")
    c.drag(x, y, -200)
    moved = span(c)
    expected = after[0] + 200 * (after[1] - after[0]) / (canvas[2] - 128)
    check("dragging pans", abs(moved[0] - expected) < 0.01 * (after[1] - after[0]), f"{moved[0]} {expected}")
    c.wheel(x, y, 120, shift=True)
    check("shift and wheel pan", span(c)[0] > moved[0] and abs((span(c)[1] - span(c)[0]) - (moved[1] - moved[0])) < 1)
    for key, grows in (("+", False), ("-", True)):
        old = span(c)
        c.key(key)
        new = span(c)
        check(f"{key} zooms", (new[1] - new[0] > old[1] - old[0]) == grows)
    c.key("0")
    check("0 shows everything", abs(span(c)[0] - before[0]) < 1 and abs(span(c)[1] - before[1]) < 1)
    for _ in range(40):
        c.wheel(x, y, -500)
    new = span(c)
    check("zooming in to the end shows ever less", 0 < new[1] - new[0] < 1e-3 * (before[1] - before[0]), f"{before} {new}")
    check("but not less than 20 ns", new[1] - new[0] > 19.9, str(new))
    check("and stays at what was under the pointer", before[0] <= new[0] <= middle <= new[1] <= before[1], f"{before} {new} {middle}")
    quiet(c, "zooming in to the end")
    for _ in range(60):
        c.wheel(x, y, 500)
    new = span(c)
    check("zooming out ends at the picture", new[1] - new[0] < 1.1 * (before[1] - before[0]))

    print("search")
    c.key("0")
    c.key("/")
    check("/ goes to the search box", c.eval("document.activeElement.id") == "search")
    c.type("movies .apply")
    count = c.eval("fsviz.view.matches.list.length")
    check("it finds every operation with all words", count == c.eval("fsviz.schedules[0].ops.name.filter((n) => n.includes('movies') && n.includes('.apply')).length") and count == 2, str(count))
    check("it says how many", text(c, "#found") == "2 found", text(c, "#found"))
    c.key("Enter")
    first = selected(c).get("name")
    c.key("Escape")
    c.key("n")
    second = selected(c).get("name")
    check("Enter and n go from match to match", {first, second} == {"movies.apply", "movies.apply#2"}, f"{first} {second}")
    c.key("N", shift=True)
    check("N goes back", selected(c).get("name") == first)
    p = place(c, "layers.0.uvqk.linear", selected(c).get("step", 1))
    c.eval("document.getElementById('search').value = ''; fsviz.search('nothing like this')")
    check("no match is said", text(c, "#found") == "none")
    c.key("Escape"); c.key("Escape")
    check("Escape clears", c.eval("fsviz.view.matches === null && fsviz.view.selected === null"))

    print("keyboard")
    open_page(c, page)
    check("nothing has the focus at first", c.eval("document.activeElement === document.body"))
    c.key("+"); c.key("+")
    zoomed = span(c)
    c.key("ArrowRight")
    check("arrows pan while nothing is selected", span(c)[0] > zoomed[0])
    c.key("Enter")
    start = selected(c)
    check("Enter selects", start.get("lane") == "compute", str(start))
    c.key("ArrowRight")
    after = selected(c)
    check("the right arrow goes to the next operation", after != start and after.get("lane") == "compute")
    c.key("ArrowLeft")
    check("the left arrow goes back", selected(c) == start, f"{start} {selected(c)}")
    c.key("ArrowDown")
    check("the down arrow goes to another engine", selected(c).get("lane") not in ("compute", None), str(selected(c)))
    c.key("ArrowUp")
    check("the up arrow goes back to it", selected(c).get("lane") == "compute")
    here = selected(c)
    c.key("b")
    back = selected(c)
    check("b follows a dependency", back != here and back.get("name"), str(back))
    c.key("Enter")
    check("Enter goes into the list of dependencies", c.eval("document.activeElement.closest('.links') !== null"))
    c.key("Enter")
    here = selected(c)
    check("and follows one", here != back)
    c.key("f")
    check("f follows it forward", selected(c) != here, str(selected(c)))
    for selector in ("#selected h2", "#fit"):
        at = c.eval(f"(() => {{ const r = document.querySelector({selector!r}).getBoundingClientRect(); return [r.left + 8, r.top + 8]; }})()")
        c.click(*at)
        here = selected(c)
        c.key("ArrowLeft")
        check(f"arrows work after a click on {selector}", here and selected(c) != here, f"{here} {selected(c)}")
    c.key("?")
    check("? shows the keys", not c.eval("document.getElementById('keys').hidden"))
    c.key("Escape")
    check("Escape hides them", c.eval("document.getElementById('keys').hidden && document.getElementById('help').ariaExpanded === 'false'"))
    check("and keeps the selection", selected(c) != {})
    for key, name in (("c", "cycle"), ("i", "idle"), ("m", "memory")):
        c.key(key)
        off = c.eval(f"[fsviz.view.{name}, document.getElementById('{name}').getAttribute('aria-pressed')]")
        c.key(key)
        check(f"{key} switches {name}", off == [False, "false"] and c.eval(f"fsviz.view.{name}"))
    c.eval("document.getElementById('search').focus()")
    order = []
    for _ in range(11):
        c.key("Tab")
        order.append(c.eval("document.activeElement.id"))
    check("Tab goes through the buttons to the picture", order == ["previous", "next", "out", "in", "fit", "one", "cycle", "idle", "memory", "help", "canvas"], str(order))
    c.eval("document.getElementById('canvas').focus()")
    c.key("Shift")
    check("the focus is visible", c.eval("getComputedStyle(document.getElementById('canvas')).outlineStyle") != "none")
    unnamed = c.eval("""[...document.querySelectorAll('button, input, canvas:not([aria-hidden]), aside, section:not([id=totals]):not([id=differences])')]
        .filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim())).map((e) => e.outerHTML.slice(0, 80))""")
    check("everything has a name", not unnamed, str(unnamed))
    quiet(c, "using it")


def two(c, page):
    print("two schedules")
    open_page(c, page)
    labels = c.eval("fsviz.schedules.map((s) => s.label)")
    check("both are there", len(labels) == 2 and labels[0] != labels[1], str(labels))
    check("they share the time axis", c.eval("""fsviz.schedules.every((s, i) => { const p = fsviz.place(s.ops.name[0], 0, i);
        const r = document.getElementById('canvas').getBoundingClientRect(), op = s.ops;
        const t = (op.start[0] + op.end[0]) / 2, v = fsviz.view;
        return Math.abs(p.x - r.left - 128 - (t - v.from) / (v.to - v.from) * (v.width - 128)) < 0.6; })"""))
    check("they are compared", "times as" in text(c, "#totals"))
    gap = c.eval("""(() => { const s = fsviz.schedules[0], lane = s.lanes.find((l) => l.compute);
        const g = lane.gaps.filter((g) => g.waits).sort((a, b) => (b.end - b.start) - (a.end - a.start))[0];
        const row = fsviz.rows().find((r) => r.lane === lane), box = document.getElementById('canvas').getBoundingClientRect(), v = fsviz.view;
        const t = (g.start + g.end) / 2 + s.step;
        return { x: box.left + 128 + (t - v.from) / (v.to - v.from) * (v.width - 128), y: box.top + row.y + 12, name: s.ops.name[g.waits[0]] }; })()""")
    c.hover(gap["x"], gap["y"])
    tip = text(c, "#tip")
    check("idle compute says what it waits for", "compute idles" in tip and gap["name"] in tip, tip)
    r, g, b = painted(c, gap["x"], gap["y"])
    check("idle compute is shaded", r > g and r > b, f"{r} {g} {b}")
    c.click(gap["x"], gap["y"])
    check("a click on it selects the cause", selected(c).get("name") == gap["name"])
    light = painted(c, 200, 300)
    c.media("dark")
    c.frame()
    dark = painted(c, 200, 300)
    check("it is dark when the system is", sum(dark) < sum(light) - 200 or sum(dark) < 200, f"{light} {dark}")
    c.eval("""window.printed = []; for (const e of ['beforeprint', 'afterprint']) addEventListener(e, () =>
        printed.push([...document.getElementById('canvas').getContext('2d').getImageData(2, 2, 1, 1).data].slice(0, 3)))""")
    c.pdf()
    check("it is printed light when the system is dark", c.eval("printed[0]") == [255, 255, 255], str(c.eval("printed")))
    check("and dark afterwards", len(c.eval("printed")) == 2 and c.eval("printed[1]") == painted(c, 2, c.eval("document.getElementById('canvas').getBoundingClientRect().top + 2"))
          and sum(c.eval("printed[1]")) < 200, str(c.eval("printed")))
    c.eval("fsviz.choose(null)")
    c.media("dark", "print")
    check("without the hint to select", c.eval("document.getElementById('selected').getBoundingClientRect().height") == 0)
    c.media("light")
    whole = len(c.pdf())
    c.eval("document.querySelectorAll('canvas').forEach(e => e.style.visibility = 'hidden')")
    empty = len(c.pdf())
    c.eval("document.querySelectorAll('canvas').forEach(e => e.style.visibility = '')")
    check("the picture is printed", whole > empty + 4000, f"{whole} bytes, {empty} without it")
    c.media("light")
    for width in (700, 420, 340, 320):
        narrow(c, width)
    quiet(c, "using it")


def narrow(c, width):
    c.size(width, 900)
    c.key("?")
    check(f"{width} pixels do not scroll sideways", c.eval("document.documentElement.scrollWidth <= innerWidth"), str(c.eval("document.documentElement.scrollWidth")))
    c.key("?")
    beyond = c.eval("""(() => { const c = document.getElementById('canvas').getContext('2d'), texts = [];
        c.fillText = (text, x, y) => { const w = c.measureText(text).width; texts.push([text, x + (c.textAlign === 'center' ? w / 2 : w)]); };
        fsviz.draw();
        delete c.fillText;
        fsviz.draw();
        return [texts.length, texts.filter(([, right]) => right > fsviz.view.width)]; })()""")
    check(f"{width} pixels cut no text of the picture", beyond[0] > 10 and not beyond[1], str(beyond))


def run(c, page):
    print("a run beside its prediction")
    open_page(c, page)
    ranks = c.eval("fsviz.schedules[0].runs.length")
    check("every rank has lanes", ranks == 2, str(ranks))
    box = text(c, "#differences")
    check("differences are listed", "Measured against predicted" in box and "planned" in box)
    sorted_by = c.eval("""(() => { const s = fsviz.schedules[0], n = [...document.querySelectorAll('#differences .linkish')].map((b) => Math.abs(s.differences[s.ops.name.indexOf(b.textContent)].time));
        return n.length > 20 && n.every((x, i) => i === 0 || x <= n[i - 1]); })()""")
    check("the largest first", sorted_by)
    p = c.eval("""(() => { const s = fsviz.schedules[0], lane = s.runs[1].lanes.find((l) => l.name === 'compute');
        let best = null; lane.visit(fsviz.view.from, fsviz.view.to, (p) => { if (!best || p.end - p.start > best.end - best.start) best = p; });
        const row = fsviz.rows().find((r) => r.lane === lane), r = document.getElementById('canvas').getBoundingClientRect(), v = fsviz.view;
        const a = Math.max(best.start, v.from), b = Math.min(best.end, v.to);
        return { x: r.left + 128 + ((a + b) / 2 - v.from) / (v.to - v.from) * (v.width - 128), y: r.top + row.y + row.height / 2, name: s.ops.name[best.op] }; })()""")
    c.hover(p["x"], p["y"])
    tip = text(c, "#tip")
    check("the tooltip has the difference", p["name"] in tip and "on rank 1" in tip and "to the prediction" in tip, tip)
    c.click(p["x"], p["y"])
    check("measured operations can be selected", selected(c).get("measured") is True and selected(c).get("name") == p["name"], str(selected(c)))
    c.eval("document.querySelector('#differences .linkish').click()")
    check("so can those of the list", selected(c).get("name") == text(c, "#differences .linkish"))
    quiet(c, "using it")


def large(c, page):
    """Figures, not a test: time to open, and times of frames while panning."""
    print("a large schedule")
    seconds = open_page(c, page)
    operations = c.eval("fsviz.schedules[0].ops.name.length")
    print(f"  {operations} operations open in {seconds:.2f} s")
    frames = """(async () => { const f = fsviz, E = f.schedules[0].extent, out = [];
      for (const part of [0.9, 0.1, 0.01, 0.001, 0.0001]) {
        f.show(E * 0.3, E * (0.3 + part));
        const times = []; let last = null;
        for (let i = 0; i < 90; i++) {
          f.pan((f.view.to - f.view.from) * 0.01);
          const now = await new Promise((r) => requestAnimationFrame(r));
          if (last !== null) times.push(now - last);
          last = now;
        }
        times.sort((a, b) => a - b);
        out.push([part, times[45], times[84], times[88]]);
      }
      return out; })()"""
    for part, median, p95, longest in c.eval(frames):
        print(f"  panning {100 * part:g}% of it: frames of {median:.1f} ms (median), {p95:.1f} ms (95%), {longest:.1f} ms (longest)")
    quiet(c, "panning")


def pictures(c, folder, to):
    os.makedirs(to, exist_ok=True)
    open_page(c, f"{folder}/two.html", width=1280, height=800)
    c.screenshot(f"{to}/viz-two.png")
    c.media("dark")
    c.key("1")
    p = place(c, "movies.apply", 1, 1)
    c.click(p["x"], p["y"])
    c.screenshot(f"{to}/viz-selected.png")
    open_page(c, f"{folder}/run.html", width=1280, height=800)
    c.screenshot(f"{to}/viz-run.png")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--pictures")
    parser.add_argument("--large")
    args = parser.parse_args()
    try:
        c = Chromium()
    except FileNotFoundError as e:
        print(f"skipped: {e} (apt-get install chromium)")
        sys.exit(3)
    try:
        one(c, f"{args.folder}/one.html")
        two(c, f"{args.folder}/two.html")
        run(c, f"{args.folder}/run.html")
        if args.pictures:
            pictures(c, args.folder, args.pictures)
        if args.large:
            large(c, args.large)
    finally:
        c.close()
    print(f"{len(failures)} failed" if failures else "all hold")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
