//! The interactive picture as a file: self-contained, small, safe whatever a schedule's names are; traces are aligned.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fs_compiler::viz::measured::Measured;
use fs_compiler::viz::{Timeline, html};
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_schedule::trace::{self, Args, Distributed, Event, EventType, Origin};
use fs_schedule::{Schedule, file};
use serde_json::Value;
use tempfile::TempDir;

fn example(name: &str, strategy: Strategy) -> Schedule {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let program = fs_dsl::load(&path).program.expect("examples are right");
    let options = CompileOptions::new(strategy, Some(2));
    compile_with(&program, &options).expect("examples compile").schedule
}

fn shown(s: &Schedule) -> html::Shown {
    html::Shown { timeline: Timeline::of(s).expect("a timeline"), measured: None, name: "file".into() }
}

/// The page's block of data.
fn data(page: &str) -> Value {
    let open = "<script type=\"application/json\" id=\"data\">";
    let (_, rest) = page.split_once(open).expect("a block of data");
    let (json, _) = rest.split_once("</script>").expect("its end");
    serde_json::from_str(json).expect("the data are JSON")
}

#[test]
fn pages_of_examples_are_small_and_load_nothing() {
    for name in ["movielens.fs", "dlrm.fs", "ranking.fs", "histories.fs"] {
        let pair = [shown(&example(name, Strategy::Serial)), shown(&example(name, Strategy::Pec))];
        let page = html::page(&pair, 3);
        assert!(page.len() < 2 << 20, "{name}: {} bytes", page.len());
        for load in ["http:", "https:", "src=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("] {
            assert!(!page.contains(load), "{name}: {load}");
        }
        assert!(page.contains("default-src 'none'"), "a policy forbids loads");
        assert_eq!(page, html::page(&pair, 3), "same schedules, same bytes");
        let data = data(&page);
        for (i, one) in pair.iter().enumerate() {
            let s = &data["schedules"][i];
            assert_eq!(s["ops"]["name"].as_array().map(Vec::len), Some(one.timeline.ops.len()));
            assert_eq!(s["step"].as_f64(), Some(one.timeline.step));
            assert_eq!(s["steps"], 3);
        }
    }
}

#[test]
fn names_cannot_leave_their_place() {
    let mut s = example("movielens.fs", Strategy::Pec);
    let evil = "</script><script>alert(1)</script>&\"'<!--\u{2028}@data@";
    s.model = evil.into();
    s.train.ops[0].name = evil.into();
    s.train.ops[1].reason = evil.into();
    s.prediction.as_mut().expect("a prediction").limits = vec![evil.into()];
    s.prediction.as_mut().expect("a prediction").cluster = evil.into();
    let page = html::page(&[shown(&s)], 2);
    let ordinary = html::page(&[shown(&example("movielens.fs", Strategy::Pec))], 2);
    for mark in ["</script", "<script", "<!--"] {
        assert_eq!(page.matches(mark).count(), ordinary.matches(mark).count(), "{mark}");
    }
    let data = data(&page);
    let schedule = &data["schedules"][0];
    assert_eq!(schedule["ops"]["name"][0], evil);
    assert_eq!(schedule["limits"][0], evil);
    assert_eq!(schedule["cluster"], evil);
    let reason = schedule["ops"]["reason"][1].as_u64().expect("a number") as usize;
    assert_eq!(data["texts"][reason], evil);
    let title = page.split_once("<title>").and_then(|(_, r)| r.split_once("</title>")).expect("a title").0;
    let escaped = "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;&lt;!--\u{2028}@data@";
    assert_eq!(title, format!("{escaped}, pec"));
}

#[test]
fn schedules_of_one_name_are_told_apart_by_their_files() {
    let (a, b) = (example("dlrm.fs", Strategy::Pec), example("dlrm.fs", Strategy::Pec));
    let pair =
        [html::Shown { name: "old".into(), ..shown(&a) }, html::Shown { name: "new".into(), ..shown(&b) }];
    let data = data(&html::page(&pair, 2));
    assert_eq!(data["schedules"][0]["label"], "dlrm, pec (old)");
    assert_eq!(data["schedules"][1]["label"], "dlrm, pec (new)");
}

/// Step of the made-up run over that of its prediction.
const SLOWER: f64 = 1.5;
/// Where its steps begin, in nanoseconds.
const ORIGIN: f64 = 1e9;

/// A run of batches `0..batches` as predicted on both ranks, except that steps are longer, and one operation takes
/// 7 us more and starts 3 us late.
fn events(s: &Schedule, t: &Timeline, slow: usize, batches: i64) -> Vec<Event> {
    let mut events = vec![Event { ph: EventType::Metadata, name: "process_name".into(), ..Event::default() }];
    for rank in 0..2 {
        for (i, op) in s.train.ops.iter().enumerate() {
            for batch in 0..batches {
                let step = batch - i64::from(op.stage);
                let late = if i == slow { 3e3 } else { 0.0 };
                let longer = if i == slow { 7e3 } else { 0.0 };
                let start = ORIGIN + op.start as f64 + late + step as f64 * t.step * SLOWER;
                events.push(Event {
                    name: op.name.clone(),
                    pid: rank,
                    ts: start / 1e3,
                    dur: Some(((op.time + op.lag) as f64 + longer) / 1e3),
                    args: Args {
                        op: Some(op.name.clone()),
                        index: Some(i as u32),
                        step: Some(batch as u64),
                        engine: Some(op.engine),
                        ..Args::default()
                    },
                    ..Event::default()
                });
            }
        }
    }
    events
}

fn write_trace(path: &Path, s: &Schedule, events: Vec<Event>) {
    let distributed = Distributed { rank: 0, world_size: 2 };
    trace::write(path, &Origin::new(s, 2), distributed, events.into_iter()).expect("the trace is written");
}

#[test]
fn measured_steps_are_aligned_with_predicted_ones() {
    let s = example("movielens.fs", Strategy::Pec);
    let t = Timeline::of(&s).expect("a timeline");
    let slow = s.train.ops.iter().position(|o| o.name == "layers.1.uvqk.linear").expect("the operation");
    let dir = TempDir::new().expect("a temporary folder");
    let path = dir.path().join("trace.json");
    write_trace(&path, &s, events(&s, &t, slow, 8));
    let m = Measured::of(&t, &trace::read(&path).expect("a trace")).expect("executions");
    // Batches 0 to 7 were traced, and stages reach two batches ahead: steps 0 to 5 are whole, and step 6 lacks but the
    // few operations of stage 2.
    assert_eq!((m.first, m.steps), (0, 7));
    assert!((m.step.expect("several steps") - t.step * SLOWER).abs() < 1.0);
    for (n, origin) in m.origins.iter().enumerate() {
        assert!((origin - n as f64 * t.step * SLOWER).abs() < 1.0, "step {n} begins at {origin}");
    }
    for (i, d) in m.differences.iter().enumerate() {
        let d = d.expect("every operation ran in whole steps");
        let (start, time) = if i == slow { (3e3, 7e3) } else { (0.0, 0.0) };
        assert!((d.start - start).abs() < 1.0 && (d.time - time).abs() < 1.0, "{}: {d:?}", t.ops[i].name);
        assert!((d.measured - (t.ops[i].time + t.ops[i].lag) as f64 - time).abs() < 1.0);
        let traced = (0..7).filter(|step| (0..8).contains(&(step + t.ops[i].stage))).count();
        assert_eq!(d.count as usize, 2 * traced, "two ranks: {}", t.ops[i].name);
    }
    assert_eq!(m.ranks.len(), 2);
    let of_first: usize =
        m.ranks[0].lanes.iter().map(|(_, list)| list.iter().filter(|e| e.step == 0).count()).sum();
    let with_batch = t.ops.iter().filter(|o| o.stage >= 0).count();
    assert_eq!(
        of_first, with_batch,
        "the first step is whole but for deferred work of a batch before the first"
    );
    let page = html::page(&[html::Shown { measured: Some(m), ..shown(&s) }], 3);
    let measured = &data(&page)["schedules"][0]["measured"];
    assert_eq!(measured["ranks"].as_array().map(Vec::len), Some(2));
    assert_eq!(measured["differences"][slow][1], 7000);
}

fn fsc(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fsc")).args(args).output().expect("fsc starts")
}

fn name(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// Fails with all of `parts`, without a panic, and leaves nothing but `left` in the folder.
fn fails(args: &[&str], parts: &[&str], dir: &Path, left: &[&str]) {
    let out = fsc(args);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && !said.contains("panicked"), "{args:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{args:?} must say `{part}`, says:\n{said}");
    }
    let mut there: Vec<String> = fs::read_dir(dir)
        .expect("the folder")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    there.sort();
    assert_eq!(there, left, "{args:?}");
}

fn folder() -> (TempDir, PathBuf, Schedule) {
    let dir = TempDir::new().expect("a temporary folder");
    let path = dir.path().join("s.json");
    // As read: the digest is that of the text.
    file::write(&path, &example("movielens.fs", Strategy::Pec)).expect("the schedule is written");
    let s = file::read(&path).expect("the schedule is read");
    (dir, path, s)
}

#[test]
fn a_picture_of_a_run() {
    let (dir, path, s) = folder();
    let t = Timeline::of(&s).expect("a timeline");
    let (ran, out) = (dir.path().join("t.json"), dir.path().join("out.html"));
    write_trace(&ran, &s, events(&s, &t, 0, 6));
    let run = fsc(&["viz", name(&path), "--trace", name(&ran), "-o", name(&out)]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let page = fs::read_to_string(&out).expect("the page");
    assert!(data(&page)["schedules"][0]["measured"]["steps"].as_u64() == Some(5));
    let two = fsc(&["viz", name(&path), name(&path), "-o", name(&out), "--steps", "5"]);
    assert!(two.status.success(), "{}", String::from_utf8_lossy(&two.stderr));
    let page = fs::read_to_string(&out).expect("the page");
    assert_eq!(data(&page)["schedules"][1]["steps"], 5);
}

#[test]
fn bad_input_is_one_clear_error_and_leaves_no_part_of_a_file() {
    let (dir, path, s) = folder();
    let t = Timeline::of(&s).expect("a timeline");
    let at = |name: &str| dir.path().join(name);
    let out = at("out.html");
    let (ran, other, cut, none) = (at("t.json"), at("u.json"), at("v.json"), at("w.json"));
    write_trace(&ran, &s, events(&s, &t, 0, 6));
    let mut of_other = s.clone();
    of_other.digest = format!("sha256:{}", "0".repeat(64));
    write_trace(&other, &of_other, events(&s, &t, 0, 6));
    let text = fs::read(&ran).expect("the trace");
    fs::write(&cut, &text[..text.len() / 2]).expect("half a trace");
    write_trace(&none, &s, Vec::new());
    let left = ["s.json", "t.json", "u.json", "v.json", "w.json"];
    let viz = |more: &[&str], parts: &[&str]| {
        let args: Vec<&str> = ["viz", name(&path)].into_iter().chain(more.iter().copied()).collect();
        fails(&args, parts, dir.path(), &left);
    };
    viz(&["-o", name(&out), "--trace", name(&other)], &["another schedule", "u.json"]);
    viz(&["-o", name(&out), "--trace", name(&cut)], &["truncated", "v.json"]);
    viz(&["-o", name(&out), "--trace", name(&none)], &["no executions", "w.json"]);
    viz(&["-o", name(&out), "--trace", name(&path)], &["not a trace", "s.json"]);
    viz(&["-o", name(&out), "--trace", name(&at("missing.json"))], &["cannot read trace", "missing.json"]);
    viz(&["-o", name(&at("out.png"))], &["out.png", ".html", ".svg", ".dot"]);
    viz(&["-o", name(&at("out.svg")), "--trace", name(&ran)], &["--trace", ".html"]);
    viz(&[name(&path), "-o", name(&out), "--trace", name(&ran)], &["one schedule"]);
    viz(&["-o", name(&at("no/folder/out.html"))], &["cannot write", "out.html"]);
    viz(&["-o", name(&out), "--steps", "0"], &["--steps"]);
    fails(&["viz", name(&at("missing.json")), "-o", name(&out)], &["missing.json"], dir.path(), &left);
}
