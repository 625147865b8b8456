#!/usr/bin/env python3
"""Which changes to the checks' own source do tests notice?

    tests/mutants/run.py [--dir FOLDER] [--jobs N] [--only TEXT] [--quick]

Lists the changes that cargo-mutants makes to the files of files.txt, builds all of them into one copy of the workspace
(fs-mutants, a change is chosen by FS_MUTANT), and runs the tests of STAGES for each until one fails. A change that breaks
the build is left out, as cargo-mutants does; one that can't be switched at run time is built by itself. Survivors that
equivalent.txt does not explain are printed; there may be 2% of them. The figures go to docs/mutants.md. --dir keeps the
copy and what is known so far, so that a run which was stopped goes on; --again tries anew what nothing noticed.
"""

import argparse
import concurrent.futures
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Tests in one process for many changes: those of HARNESSED, of each crate. What they leave goes on to STAGES.
HARNESS = ("fs-tests", "test", "harness")
HARNESSED = {"schedule": ("verifier", "boundaries", "verdicts"), "compiler": ("snapshots",)}
# What is run for each change, in this order: package, kind of target, target, and for changes of which crates.
BOTH = ("schedule", "compiler")
STAGES = [
    ("fs-schedule", "lib", "fs_schedule", ("schedule",)),
    ("fs-schedule", "test", "valid", ("schedule",)),
    ("fs-compiler", "lib", "fs_compiler", ("compiler",)),
    ("fs-tests", "test", "filetests", ("compiler",)),
    ("fs-tests", "test", "verifier", ("schedule",)),
    ("fs-tests", "test", "boundaries", ("schedule",)),
    ("fs-tests", "test", "verdicts", ("schedule",)),
    ("fs-tests", "test", "snapshots", BOTH),
    ("fs-tests", "test", "hostile", ("schedule",)),
    ("fs-tests", "test", "compiled", BOTH),
    ("fs-tests", "test", "campaign", BOTH),
    ("fs-tests", "test", "equality", BOTH),
    ("fs-tests", "test", "schedules", BOTH),
]
# Of a program of many tests only these.
ONLY = {"schedules": ["interpreter::"]}
# Seconds after which a change hangs in the harness, where all of it takes a few.
HANGS = 60
PAGE = ROOT / "docs/mutants.md"
MARK = "<!-- figures: from here on written by tests/mutants/run.py -->"
MEMORY = 8 << 30
SHARE = 0.02
SWITCH = """

/// The change that is on; the greatest number: as the environment says.
pub static MUTANT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(u32::MAX);

/// The change that is on.
pub(crate) fn mutant_on() -> u32 {
    use std::sync::atomic::Ordering::Relaxed;
    match MUTANT.load(Relaxed) {
        u32::MAX => {
            let n = std::env::var("FS_MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
            MUTANT.store(n, Relaxed);
            n
        }
        n => n,
    }
}
"""


def say(text):
    print(text, flush=True)


def cargo(arguments, folder, **more):
    return subprocess.run(["cargo", *arguments], cwd=folder, text=True, capture_output=True, **more)


def files():
    lines = (HERE / "files.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def listed():
    wanted = [flag for name in files() for flag in ("-f", name)]
    done = cargo(["mutants", "--list", "--json", *wanted], ROOT)
    if done.returncode != 0:
        sys.exit(f"cargo mutants --list: {done.stderr.strip()}\n(cargo install --locked cargo-mutants)")
    return json.loads(done.stdout)


def keys(mutants):
    """A name for each change that outlives changes elsewhere in its file: what is changed, in which line's text."""
    found, seen = [], {}
    for m in mutants:
        line = (ROOT / m["file"]).read_text().splitlines()[m["span"]["start"]["line"] - 1].strip()
        what = m["name"].split(": ", 1)[1]
        key = f"{m['file']}: {what} | {line}"
        seen[key] = seen.get(key, 0) + 1
        found.append(key if seen[key] == 1 else f"{key} #{seen[key]}")
    return found


def copy(folder):
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    kept = {folder / name for name in names.decode().split("\0")}
    for path in folder.rglob("*.rs"):
        if path not in kept and folder / "target" not in path.parents:
            path.unlink()
    for name in names.decode().split("\0"):
        if name and (ROOT / name).exists():
            to = folder / name
            to.parent.mkdir(parents=True, exist_ok=True)
            text = (ROOT / name).read_bytes()
            if not to.exists() or to.read_bytes() != text:
                to.write_bytes(text)


def crates(mutants):
    return sorted({m["file"].split("/src/")[0] for m in mutants})


def switched(folder, mutants, dropped):
    """Writes the files with all changes but the dropped ones; the numbers that can't be switched."""
    listing = [m if n + 1 not in dropped else {**m, "genre": "dropped"} for n, m in enumerate(mutants)]
    for name in {m["file"] for m in mutants}:
        (folder / name).write_bytes((ROOT / name).read_bytes())
    for crate in crates(mutants):
        lib = folder / crate / "src/lib.rs"
        lib.write_text((ROOT / crate / "src/lib.rs").read_text() + SWITCH)
    (folder / "mutants.json").write_text(json.dumps(listing))
    done = cargo(["run", "--quiet", "-p", "fs-mutants", "--", folder / "mutants.json", folder], ROOT)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return {int(n) for n in done.stdout.split()} - dropped


def guilty(folder, message):
    """The changes in whose text the compiler found an error."""
    found = set()
    for span in message["spans"]:
        path = folder / span["file_name"]
        if not span["is_primary"] or not path.is_file():
            continue
        text = path.read_bytes()
        open_ = []
        for mark in re.finditer(rb"/\*(?:M(\d+)|E)\*/", text):
            if mark.start() >= span["byte_end"]:
                break
            if mark.group(1):
                open_.append((int(mark.group(1)), mark.start()))
            elif mark.start() <= span["byte_start"]:
                open_.pop()
        if open_:
            found.add(open_[-1][0])
    for child in message["children"]:
        if not found:
            found |= guilty(folder, child)
    return found


def build(folder, mutants, dropped):
    """Drops what does not compile until the rest does; the numbers that can't be switched."""
    packages = [flag for c in crates(mutants) for flag in ("-p", "fs-" + c)]
    while True:
        not_switched = switched(folder, mutants, dropped)
        done = cargo(["check", "--message-format=json", *packages], folder)
        errors = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        errors = [e["message"] for e in errors if e["reason"] == "compiler-message" and e["message"]["level"] == "error"]
        if done.returncode == 0:
            return not_switched
        new = set().union(*(guilty(folder, e) for e in errors)) - dropped
        if not new:
            sys.exit("the changed sources do not build:\n" + "\n".join(e["rendered"] for e in errors[:5]) + done.stderr[-2000:])
        say(f"{len(new)} changes do not compile")
        dropped |= new


def binaries(folder, wanted, **more):
    """Builds tests; their executables."""
    found, targets = {}, {}
    for package, kind, target in wanted:
        targets.setdefault(package, []).extend(["--lib"] if kind == "lib" else ["--test", target])
    for package, flags in targets.items():
        done = cargo(["test", "--no-run", "--message-format=json", "-p", package, *flags], folder, **more)
        if done.returncode != 0:
            sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
        for line in done.stdout.splitlines():
            m = json.loads(line) if line.startswith("{") else {}
            if m.get("reason") == "compiler-artifact" and m.get("executable") and m["profile"]["test"]:
                found[(package, m["target"]["kind"][0], m["target"]["name"])] = m["executable"]
    missing = [w for w in wanted if w not in found]
    if missing:
        sys.exit(f"no such tests: {missing}")
    return found


def limited():
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def start(folder, key, executable, **environment):
    env = {**os.environ, "PROPTEST_RNG_SEED": "1", "RUST_BACKTRACE": "0", **environment}
    package = "tests" if key[0] == "fs-tests" else key[0].removeprefix("fs-")
    quiet = subprocess.DEVNULL
    command = [executable, "--quiet", *ONLY.get(key[2], [])]
    return subprocess.Popen(command, cwd=folder / package, env=env, stdout=quiet, stderr=quiet, preexec_fn=limited)


def end(test):
    os.killpg(test.pid, signal.SIGKILL)
    test.wait()


def passes(folder, key, executable, number, limit):
    """Whether a test passes under a change; a hang is noticed as well."""
    test = start(folder, key, executable, FS_MUTANT=str(number))
    try:
        return test.wait(timeout=limit) == 0
    except subprocess.TimeoutExpired:
        end(test)
        return False


def harness(folder, executable, numbers, crate):
    """What notices each change in the harness: (number, name or None)."""
    left = list(numbers)
    path = folder / f"noticed-{os.getpid()}-{numbers[0]}.txt"
    while left:
        path.write_text("")
        test = start(folder, HARNESS, executable, FS_MUTANTS=",".join(map(str, left)), FS_NOTICED=str(path),
                     FS_CRATE=crate)
        seen, changed, hung = "", time.monotonic(), False
        while test.poll() is None:
            time.sleep(0.5)
            now = path.read_text()
            if now != seen:
                seen, changed = now, time.monotonic()
            elif time.monotonic() - changed > HANGS:
                hung = True
                end(test)
        begun = None
        for line in path.read_text().splitlines():
            number, what = line.split(maxsplit=1)
            if what == "begun":
                begun = int(number)
            else:
                begun = None
                left.remove(int(number))
                yield int(number), None if what == "none" else what
        if begun is not None:
            left.remove(begun)
            yield begun, "a hang" if hung else "an abort"
        elif left and test.returncode != 0:
            sys.exit("the harness fails without a change")
    path.unlink()


def stages(folder, crate_of, numbers, until, pool, learn):
    """Runs the tests of STAGES, one after the other for all changes that are left; the changes that all of them leave."""
    left = list(numbers)
    for package, kind, target, crates_ in STAGES:
        key = (package, kind, target)
        mine = [n for n in left if crate_of(n) in crates_ and target not in HARNESSED[crate_of(n)]]
        if mine:
            executable, at = binaries(folder, [key])[key], time.monotonic()
            if not passes(folder, key, executable, 0, 600):
                sys.exit(f"{target} fails without a change")
            took = time.monotonic() - at
            for n, ok in zip(mine, pool.map(lambda n: passes(folder, key, executable, n, 20 + 10 * took), mine)):
                if not ok:
                    learn(n, target)
                    left.remove(n)
            say(f"{target}, {took:.1f} s: {len(left)} left")
        if target == until:
            break
    return left


def single(folder, mutant):
    """Builds one change by itself; the test that notices it, None, or "build"."""
    path = folder / mutant["file"]
    original = path.read_bytes()
    done = subprocess.run(["patch", "--quiet", str(path)], input=mutant["diff"], text=True, capture_output=True)
    try:
        if done.returncode != 0:
            sys.exit(f"{mutant['name']}: not applied: {done.stdout}")
        crate = mutant["file"].split("/")[0]
        # A build is what takes time: the changed crate only and not optimised, then what is cheap to run, all at once.
        plain_build = {"env": {**os.environ, "CARGO_PROFILE_DEV_OPT_LEVEL": "0", "CARGO_INCREMENTAL": "1"}}
        if cargo(["check", "-p", f"fs-{crate}"], folder, **plain_build).returncode != 0:
            return "build"
        keys_ = [(p, k, t) for p, k, t, c in STAGES if crate in c]
        own = [k for k in keys_ if k[0] == f"fs-{crate}"]
        cheap = [k for k in keys_ if k[2] in HARNESSED[crate]]
        built = {}
        for key in own + cheap + [k for k in keys_ if k not in own + cheap]:
            if key not in built:
                group = own if key in own else cheap if key in cheap else [key]
                built = binaries(folder, group, **(plain_build if group is own else {}))
            if not passes(folder, key, built[key], 0, 600):
                return key[2]
        return None
    finally:
        path.write_bytes(original)


def plain(folder, mutants):
    """The copy without changes."""
    for name in {m["file"] for m in mutants} | {f"{c}/src/lib.rs" for c in crates(mutants)}:
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "tests/tests/harness.rs").unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true", help="the harness only")
    parser.add_argument("--until", metavar="TEST", help="no further than this test of STAGES")
    parser.add_argument("--again", action="store_true", help="what is known as unnoticed is tried anew")
    given = parser.parse_args()
    folder = (given.dir or Path(tempfile.mkdtemp(prefix="mutants-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    mutants = listed()
    names = keys(mutants)
    copy(folder)
    known_path = folder / "known.json"
    known = json.loads(known_path.read_text()) if known_path.exists() else {}
    if given.again:
        known = {k: by for k, by in known.items() if by is not None}

    lock = threading.Lock()

    def learn(n, by):
        with lock:
            known[names[n - 1]] = by
            if by is None:
                say(f"unnoticed: {mutants[n - 1]['name']}")
            known_path.write_text(json.dumps(known, indent=0))

    dropped = {n + 1 for n, k in enumerate(names) if known.get(k) == "build"}
    (folder / "tests/tests/harness.rs").write_bytes((HERE / "harness.rs").read_bytes())
    not_switched = build(folder, mutants, dropped)
    for n in dropped:
        learn(n, "build")
    say(f"{len(mutants)} changes: {len(dropped)} do not compile, {len(not_switched)} need a build of their own")
    todo = [n for n in range(1, len(mutants) + 1) if names[n - 1] not in known and given.only in names[n - 1]]
    switch = [n for n in todo if n not in not_switched]
    of = lambda n: mutants[n - 1]["file"].split("/")[0]
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        left = set()
        executable = binaries(folder, [HARNESS])[HARNESS] if switch else None
        for crate in HARNESSED:
            first = [n for n in switch if of(n) == crate]
            parts = [first[i :: given.jobs] for i in range(given.jobs)]

            def part(numbers, crate=crate):
                for n, by in harness(folder, executable, numbers, crate):
                    if by is None:
                        left.add(n)
                    else:
                        learn(n, by)

            list(pool.map(part, [p for p in parts if p]))
            say(f"{crate}: {len(first) - len(left & set(first))} of {len(first)} noticed by the harness")
        if not given.quick:
            left = stages(folder, of, sorted(left), given.until, pool, learn)
        if given.quick or given.until:
            report(mutants, names, known, {names[n - 1] for n in left})
            return 0
        for n in left:
            learn(n, None)
    plain(folder, mutants)
    for n in [n for n in todo if n in not_switched]:
        learn(n, single(folder, mutants[n - 1]))
    return report(mutants, names, known)


def explanations():
    """What equivalent.txt says: a change, and indented below it why nothing can notice it."""
    found, key = {}, None
    for line in (HERE / "equivalent.txt").read_text().splitlines():
        if line.startswith("  "):
            found[key] = (found[key] + " " + line.strip()).strip()
        elif line and not line.startswith("#"):
            key = line
            found[key] = ""
    return found


def report(mutants, names, known, left=frozenset()):
    """Writes the figures into the page; 1 if too much is unnoticed. `left`: by the tests that ran, if not all did."""
    why = explanations()
    kinds = ["changes", "do not compile", "noticed", "explained", "unnoticed", "left", "not tried"]
    rows, tests, explained, some, unexplained, untried = {}, {}, [], [], [], []
    for m, k in zip(mutants, names):
        if known.get(k) is not None:
            kind = "do not compile" if known[k] == "build" else "noticed"
        elif k in why and (k in left or k in known):
            kind = "explained"
            explained.append(k)
        elif k in left:
            kind = "left"
            some.append(k)
        elif k in known:
            kind = "unnoticed"
            unexplained.append(k)
        else:
            kind = "not tried"
            untried.append(k)
        if kind == "noticed":
            tests[known[k]] = tests.get(known[k], 0) + 1
        for row in (m["file"], "all"):
            counts = rows.setdefault(row, {})
            counts[kind] = counts.get(kind, 0) + 1
            counts["changes"] = counts.get("changes", 0) + 1
    everything = rows.pop("all")
    text = "| file | " + " | ".join(kinds) + " |\n|---|" + "---:|" * len(kinds) + "\n"
    for name, counts in [*sorted(rows.items()), ("all", everything)]:
        text += f"| {name} | " + " | ".join(str(counts.get(k, 0)) for k in kinds) + " |\n"
    text += "\n| noticed by | changes |\n|---|---:|\n"
    text += "".join(f"| {test} | {n} |\n" for test, n in sorted(tests.items(), key=lambda t: -t[1]))
    listed_ = lambda keys, reason: "".join(f"- `{k}`{reason(k)}\n" for k in keys) or "None.\n"
    text += "\n## Explained\n\n" + listed_(explained, lambda k: f": {why[k]}")
    for what, keys_ in [("Left by the tests that ran", some), ("Unnoticed", unexplained), ("Not tried", untried)]:
        if keys_:
            text += f"\n## {what}\n\n" + listed_(keys_, lambda k: "")
    say(text)
    head, _, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(head + MARK + "\n\n" + text)
    wrong = [f"explained, but noticed: {k}" for k in why if known.get(k, None) is not None]
    wrong += [f"explained, but not there: {k}" for k in why if k not in names]
    wrong += [f"{everything['not tried']} not tried"] if "not tried" in everything else []
    tried = everything["changes"] - everything.get("do not compile", 0)
    open_ = len(unexplained) + len(some)
    if open_ > SHARE * tried:
        wrong.append(f"{open_} of {tried} changes are unnoticed or left, {SHARE:.0%} may be")
    for line in wrong:
        say(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
