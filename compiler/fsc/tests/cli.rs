//! `fsc` from outside: results, messages and exit statuses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const MODEL: &str = "model tiny {
  table items { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input history: ids(items) { max 5 }
  input click: label like history
  loss bce_with_logits(linear(lookup(history), 1, name: \"head\"), click, normalize: tokens)
}

train { batch 4  steps 2 }

workload synthetic {
  generate { lengths fixed(3)  ids uniform  labels bernoulli(0.5) }
}
";

fn fsc(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fsc")).args(args).output().expect("fsc starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder with `model.fs`.
fn folder(model: &str) -> (TempDir, PathBuf) {
    let dir = TempDir::new().expect("a temporary folder");
    let path = dir.path().join("model.fs");
    fs::write(&path, model).expect("the model is written");
    (dir, path)
}

fn name(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// Fails with a message that holds all of `parts`, and never by a panic.
fn fails(args: &[&str], parts: &[&str]) {
    let out = fsc(args);
    let said = text(&out.stderr);
    assert!(!out.status.success(), "{args:?} must fail");
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{args:?} must say `{part}`, says:\n{said}");
    }
}

#[test]
fn compiles_to_the_same_bytes_each_time() {
    let (dir, model) = folder(MODEL);
    let (a, b) = (dir.path().join("a.json"), dir.path().join("b.json"));
    for out in [&a, &b] {
        let run = fsc(&["compile", name(&model), "-o", name(out), "--ranks", "2"]);
        assert!(run.status.success(), "{}", text(&run.stderr));
    }
    assert_eq!(fs::read(&a).expect("a"), fs::read(&b).expect("b"));
    let verified = fsc(&["verify", name(&a)]);
    assert!(verified.status.success() && text(&verified.stdout).contains("valid"));
}

#[test]
fn default_output_stands_beside_the_model() {
    let (dir, model) = folder(MODEL);
    assert!(fsc(&["compile", name(&model)]).status.success());
    assert!(dir.path().join("model.json").exists());
}

#[test]
fn standard_output_holds_nothing_but_the_schedule() {
    let (_dir, model) = folder(MODEL);
    let out = fsc(&["compile", name(&model), "-o", "-"]);
    fs_schedule::file::parse(Path::new("-"), &out.stdout, true).expect("a schedule");
}

#[test]
fn every_strategy_compiles_verifies_and_is_explained() {
    let (dir, model) = folder(&MODEL.replace("batch 4", "batch 8"));
    let out = dir.path().join("s.json");
    for strategy in ["serial", "prefetch", "pec", "auto"] {
        let args =
            ["compile", name(&model), "-o", name(&out), "--strategy", strategy, "--cluster", "dgx_h100"];
        let run = fsc(&args);
        let said = text(&run.stderr);
        assert!(run.status.success(), "{strategy}: {said}");
        for part in ["predicted step", "8 ranks", "resource bound", "recurrence bound", "bubble", "memory"] {
            assert!(said.contains(part), "{strategy}: must say `{part}`, says:\n{said}");
        }
        assert!(fsc(&["verify", name(&out)]).status.success(), "{strategy}");
        let explained = fsc(&["explain", name(&out)]);
        let said = text(&explained.stdout);
        for part in ["longest cycle", "busy", "head.linear", "operations in issue order"] {
            assert!(explained.status.success() && said.contains(part), "{strategy}: `{part}` in\n{said}");
        }
    }
}

#[test]
fn an_operation_is_explained_by_name_and_as_json() {
    let (dir, model) = folder(MODEL);
    let out = dir.path().join("s.json");
    let args = ["compile", name(&model), "-o", name(&out), "--strategy", "pec", "--ranks", "2", "--json"];
    let run = fsc(&args);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&run.stdout).expect("a summary");
    assert!(summary["step"].as_f64().is_some_and(|s| s > 0.0) && summary["cluster"] == "local");
    let run = fsc(&["explain", name(&out), "--op", "items.unique"]);
    assert!(text(&run.stdout).contains("reason"), "{}", text(&run.stderr));
    let run = fsc(&["explain", name(&out), "--op", "items.unique", "--json"]);
    let op: serde_json::Value = serde_json::from_slice(&run.stdout).expect("an operation");
    assert_eq!(op["op"], "items.unique");
    fails(&["explain", name(&out), "--op", "nothing"], &["no operation `nothing`"]);
    let json = fsc(&["explain", name(&out), "--json"]);
    let all: serde_json::Value = serde_json::from_slice(&json.stdout).expect("an explanation");
    assert!(all["operations"].as_array().is_some_and(|o| o.len() > 10));
}

#[test]
fn clusters_come_from_the_model_the_presets_or_are_refused() {
    let block = "\ncluster two from dgx_h100 { gpus_per_node 2 }\n";
    let (dir, model) = folder(&format!("{MODEL}{block}"));
    let out = dir.path().join("s.json");
    let run = fsc(&["compile", name(&model), "-o", name(&out)]);
    assert!(text(&run.stderr).contains("on two (2 ranks)"), "{}", text(&run.stderr));
    fails(
        &["compile", name(&model), "-o", name(&out), "--cluster", "tow"],
        &["no cluster `tow`", "dgx_h100"],
    );
    fails(&["compile", name(&model), "-o", name(&out), "--ranks", "0"], &["--ranks"]);
    fails(&["compile", name(&model), "-o", name(&out), "--lookahead", "65"], &["lookahead", "1..=64"]);
}

#[test]
fn errors_name_the_place_and_nothing_is_written() {
    let (dir, model) = folder(&MODEL.replace("lookup(history)", "lookup(histori)"));
    let out = dir.path().join("s.json");
    fails(&["compile", name(&model), "-o", name(&out)], &["model.fs:5", "histori", "did you mean"]);
    fails(&["check", name(&model)], &["FS00", "1 error"]);
    assert!(!out.exists());
}

#[test]
fn bad_files_are_errors() {
    let dir = TempDir::new().expect("a temporary folder");
    let path = dir.path().to_str().expect("text");
    let missing = format!("{path}/missing.fs");
    fails(&["check", &missing], &["missing.fs"]);
    fails(&["check", path], &["director"]);
    fails(&["fmt", &missing], &["missing.fs"]);
    fails(&["verify", &missing], &["missing.fs", "cannot read"]);
    let empty = format!("{path}/empty.json");
    fs::write(&empty, "").expect("written");
    fails(&["verify", &empty], &["empty", "fsc compile"]);
    let (_dir, model) = folder(MODEL);
    fails(&["compile", name(&model), "-o", &format!("{path}/no/such/folder.json")], &["cannot write"]);
    fails(&["compile", name(&model), "-o", "/dev/full"], &["cannot write", "/dev/full"]);
    // Before anything is searched for.
    for wrong in [
        ["-o", &format!("{path}/no/such/folder.json")],
        ["--emit-ir", &format!("{path}/no/such/folder.mlir")],
        ["--balance-at", "rows"],
        ["--table", "items:fold=on"],
    ] {
        let args = ["compile", name(&model), "--balance", "off", "--ranks", "2", wrong[0], wrong[1]];
        let said = text(&fsc(&args).stderr);
        assert!(said.contains("error: ") && !said.contains("auto: "), "{wrong:?}: {said}");
    }
    fails(&["compile", name(&model), "-o", "-", "--ranks", "0"], &["--ranks"]);
    for same in ["-", "both.json"] {
        fails(&["compile", name(&model), "-o", same, "--emit-ir", same], &["would both go to"]);
    }
}

#[test]
fn a_changed_schedule_is_refused_unless_the_digest_is_ignored() {
    let (dir, model) = folder(MODEL);
    let schedule = dir.path().join("s.json");
    assert!(fsc(&["compile", name(&model), "-o", name(&schedule)]).status.success());
    let good = fs::read_to_string(&schedule).expect("read");

    fs::write(&schedule, good.replace("\"model\": \"tiny\"", "\"model\": \"tony\"")).expect("written");
    fails(&["verify", name(&schedule)], &["changed after it was compiled", "--ignore-digest"]);
    assert!(fsc(&["verify", "--ignore-digest", name(&schedule)]).status.success());

    // What decides which model is trained is in the model's own digest.
    fs::write(&schedule, good.replace("\"batch\": 4", "\"batch\": 8")).expect("written");
    fails(&["verify", "--ignore-digest", name(&schedule)], &["rule `reference`"]);

    let now = fs_schedule::VERSION;
    let old = good.replace(&format!("\"version\": {now}"), "\"version\": 1");
    fs::write(&schedule, old).expect("written");
    fails(&["verify", name(&schedule)], &["has schedule version 1", &format!("reads version {now}")]);

    fs::write(&schedule, good.replacen("\"stage\": 0", "\"stagger\": 0", 1)).expect("written");
    fails(&["verify", "--ignore-digest", name(&schedule)], &["unknown field `stagger`"]);
}

#[test]
fn formats_in_place_and_checks() {
    let (_dir, model) = folder(MODEL);
    assert!(fsc(&["fmt", name(&model)]).status.success());
    let pretty = fs::read_to_string(&model).expect("read");
    assert!(fsc(&["fmt", "--check", name(&model)]).status.success());
    let ugly = pretty.replace("table items", "   table   items");
    fs::write(&model, &ugly).expect("written");
    fails(&["fmt", "--check", name(&model)], &["not formatted"]);
    assert_eq!(fs::read_to_string(&model).expect("read"), ugly, "--check changes nothing");
    assert!(fsc(&["fmt", name(&model)]).status.success());
    assert_eq!(fs::read_to_string(&model).expect("read"), pretty);
    let (_dir, broken) = folder("model {");
    fails(&["fmt", name(&broken)], &["FS00", "syntax"]);
    assert_eq!(fs::read_to_string(&broken).expect("read"), "model {", "a broken file is left alone");
}

#[cfg(unix)]
#[test]
fn formatting_through_a_link_keeps_the_link_and_the_mode() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let (dir, model) = folder(&MODEL.replace("table items", "table    items"));
    fs::set_permissions(&model, fs::Permissions::from_mode(0o640)).expect("the mode is set");
    let link = dir.path().join("link.fs");
    symlink(&model, &link).expect("a link");
    assert!(fsc(&["fmt", name(&link)]).status.success());
    assert!(fs::symlink_metadata(&link).is_ok_and(|m| m.is_symlink()));
    assert!(!fs::read_to_string(&model).expect("read").contains("table    items"));
    assert_eq!(fs::metadata(&model).expect("metadata").permissions().mode() & 0o777, 0o640);
}

#[test]
fn codes_are_explained() {
    let out = fsc(&["explain", "FS0001"]);
    assert!(out.status.success() && text(&out.stdout).contains("syntax"));
    fails(&["explain", "FS9999"], &["FS9999"]);
}

const FROM_FILE: &str = "model next {
  table items { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input history: ids(items) { max 5 }
  input following: next(history)
  loss sampled_softmax(net(lookup(history)), items, following, negatives: 2, normalize: tokens)
}
import \"../lib/net.fs\"
train { batch 4  steps 2 }
workload log { csv \"../data/log.csv\" { user \"u\"  item \"i\" } }
";

/// `p/models/m.fs` with `p/lib/net.fs` and `p/data/log.csv`.
fn project() -> TempDir {
    let dir = TempDir::new().expect("a temporary folder");
    for folder in ["p/models/out", "p/lib", "p/data", "elsewhere"] {
        fs::create_dir_all(dir.path().join(folder)).expect("a folder");
    }
    let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("written");
    put("p/models/m.fs", FROM_FILE);
    put("p/lib/net.fs", "block net(x) { return linear(x, 4) }");
    put("p/data/log.csv", "u,i\n1,1\n1,2\n");
    dir
}

fn compile_in(folder: &Path, model: &str, output: &str) -> String {
    let mut fsc = Command::new(env!("CARGO_BIN_EXE_fsc"));
    let out = fsc.current_dir(folder).args(["compile", model, "-o", output]).output().expect("fsc starts");
    assert!(
        out.status.success() && (output == "-" || text(&out.stderr).lines().any(|l| l.starts_with("next:"))),
        "{}",
        text(&out.stderr)
    );
    if output == "-" { text(&out.stdout) } else { fs::read_to_string(folder.join(output)).expect("written") }
}

fn paths(schedule: &str) -> Vec<&str> {
    let mut paths: Vec<&str> =
        schedule.split("\"path\": \"").skip(1).filter_map(|s| s.split('"').next()).collect();
    paths.sort_unstable();
    paths
}

#[test]
fn the_same_model_gives_the_same_bytes_wherever_and_however_it_is_named() {
    let dir = project();
    let at = |folder: &str| dir.path().join(folder);
    let beside = compile_in(&at("p/models"), "m.fs", "s.json");
    assert_eq!(paths(&beside), ["../data/log.csv", "../lib/net.fs", "m.fs"]);
    let absolute = at("p/models/m.fs");
    for (folder, model, output) in [
        ("p/models", "./m.fs", "s.json"),
        ("p/models", "../models/m.fs", "./s.json"),
        ("p/models", name(&absolute), "s.json"),
        ("p", "models/m.fs", "models/other.json"),
        ("elsewhere", "../p/models/m.fs", "../p/models/s.json"),
        ("elsewhere", "../p/models/m.fs", "-"),
        ("p/data", "../models//./m.fs", name(&at("p/models/s.json"))),
    ] {
        assert_eq!(compile_in(&at(folder), model, output), beside, "{model} -> {output} in {folder}");
    }
}

#[test]
fn a_schedule_written_elsewhere_names_its_data_from_there() {
    let dir = project();
    let at = |folder: &str| dir.path().join(folder);
    let cases = [
        ("s.json", "p/data/log.csv"),
        ("elsewhere/s.json", "../p/data/log.csv"),
        ("p/models/out/s.json", "../../data/log.csv"),
    ];
    for (output, data) in cases {
        let schedule = compile_in(dir.path(), "p/models/m.fs", output);
        assert!(paths(&schedule).contains(&data), "{output}: {:?}", paths(&schedule));
        assert!(paths(&schedule).contains(&"m.fs") && paths(&schedule).contains(&"../lib/net.fs"));
    }
    // A path that the model gives as absolute is the user's own.
    let log = at("p/data/log.csv");
    fs::write(at("p/models/m.fs"), FROM_FILE.replace("../data/log.csv", name(&log))).expect("written");
    assert!(paths(&compile_in(&at("p"), "models/m.fs", "s.json")).contains(&name(&log)));
}

#[cfg(unix)]
#[test]
fn links_to_a_folder_do_not_lead_the_data_astray() {
    let dir = project();
    let at = |folder: &str| dir.path().join(folder);
    std::os::unix::fs::symlink(at("p/models/out"), at("link")).expect("a link");
    let schedule = compile_in(dir.path(), "p/models/m.fs", "link/s.json");
    let data = *paths(&schedule).iter().find(|p| p.ends_with("log.csv")).expect("the data");
    assert!(at("link").join(data).exists(), "{data} from the folder that the link leads to");
}

#[test]
fn a_model_without_a_workload_compiles_with_a_warning() {
    let (_dir, model) = folder(&MODEL[..MODEL.find("workload").expect("a workload")]);
    let out = fsc(&["compile", name(&model)]);
    let said = text(&out.stderr);
    assert!(out.status.success() && said.contains("warning: ") && said.contains("--data FILE"), "{said}");
    let (_dir, model) = folder(MODEL);
    assert!(!text(&fsc(&["compile", name(&model)]).stderr).contains("warning"));
}

#[test]
fn a_lookahead_that_a_strategy_has_no_use_for_is_a_warning() {
    let (_dir, model) = folder(MODEL);
    for strategy in ["serial", "prefetch", "overlap", "pec", "auto"] {
        let says = |asked: &[&str]| {
            let run = fsc(&[&["compile", name(&model), "--strategy", strategy], asked].concat());
            assert!(run.status.success(), "{}", text(&run.stderr));
            text(&run.stderr).contains(&format!("how rows are told apart, which `{strategy}` does"))
        };
        let useless = !["pec", "auto"].contains(&strategy);
        assert_eq!(says(&["--lookahead", "2"]), useless, "{strategy}");
        assert_eq!(says(&["--table", "items:lookahead=2"]), useless, "{strategy}");
        assert_eq!(says(&["--windows", "1"]), useless, "{strategy}");
        assert_eq!(says(&["--table", "items:windows=1"]), useless, "{strategy}");
        assert!(!says(&[]), "{strategy}");
    }
}

/// A limit that no plan keeps: four samples of 3 ids on two ranks.
#[test]
fn a_limit_that_cannot_be_kept_is_a_warning() {
    for (limit, warned) in [(5, true), (6, false)] {
        let (_dir, model) =
            folder(&MODEL.replace("train {", &format!("train {{ balance on(limit: {limit} tokens) ")));
        let out = fsc(&["compile", name(&model), "--ranks", "2"]);
        let said = text(&out.stderr);
        assert!(out.status.success(), "{said}");
        let warning =
            "warning: in 128 of 128 batches drawn no plan was found that keeps the limit of 5 tokens a rank";
        assert_eq!(said.contains(warning) && said.contains("6 tokens would do"), warned, "{said}");
        assert_eq!(said.contains("no plan"), warned, "{said}");
    }
}

/// As `fsx run` would, with the place where the batch is said.
#[test]
fn a_batch_that_does_not_divide_by_the_ranks_is_an_error() {
    let (dir, model) = folder(MODEL);
    let schedule = dir.path().join("s.json");
    let out = fsc(&["compile", name(&model), "--ranks", "7", "-o", name(&schedule)]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    for part in ["error[FS0064]", "does not divide over 7 ranks", "batch ", "^", "--ranks"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!schedule.exists());
}

/// A profile of a compiled schedule with a few plausible numbers.
fn profile_of(schedule: &Path) -> fs_schedule::Profile {
    use fs_schedule::profile::{
        DISTANCES, FORMAT, KindCost, LinkCost, OpCost, Overhead, Profile, ReuseCounts, Rows, Transfers,
        VERSION, shape,
    };
    let s = fs_schedule::read(schedule).expect("what fsc wrote");
    let kinds: std::collections::BTreeSet<String> = s.train.ops.iter().map(|op| op.action.name()).collect();
    let line = |kind: String| KindCost {
        kind,
        fixed: 3e-6,
        per_flop: 1e-11,
        per_byte: 2e-10,
        points: 1,
        error: 0.0,
    };
    let mut far = vec![0.0; DISTANCES as usize + 1];
    far[DISTANCES as usize] = 5.0;
    let reuse = ReuseCounts { microbatches: 1, forward: vec![far.clone()], backward: vec![far] };
    Profile {
        format: FORMAT.into(),
        version: VERSION,
        model: s.model.clone(),
        shape: shape(&s),
        ranks: s.ranks,
        machine: "2 ranks on 4 cores".into(),
        link: Some("1 GB/s, 7 ms".into()),
        strategy: s.strategy,
        microbatches: s.settings.microbatches.max(1),
        steps: 10,
        step: 1e-3,
        scatter: 0.1,
        sizes: vec![("B".into(), 2.0), ("T0".into(), 6.0), ("Q0".into(), 18.0)],
        samples: None,
        rows: vec![Rows {
            table: "items".into(),
            part: 0,
            sent: 5.0,
            busiest: 1.0,
            hashed: None,
            asking: None,
            owners: Vec::new(),
            hashed_owners: Vec::new(),
            hot: Vec::new(),
            reuse: vec![reuse],
            relayed: None,
        }],
        ops: vec![OpCost { name: "a".into(), kind: "expand".into(), flops: 0.0, bytes: 100.0, time: 3e-6 }],
        kinds: kinds.into_iter().map(line).collect(),
        transfers: Transfers {
            fixed: 1e-5,
            per_byte: 1e-10,
            link: Some(LinkCost { latency: 7e-3, bandwidth: 1e9 }),
        },
        overhead: Overhead { dispatch: 1e-6, wake: 1e-5 },
        batch: 1e-4,
        sharing: 0.5,
        cores: Some(4),
        balanced: false,
        lengths: Vec::new(),
    }
}

#[test]
fn profiles_replace_the_cluster() {
    let (dir, model) = folder(MODEL);
    let (out, path) = (dir.path().join("s.json"), dir.path().join("p.json"));
    let compile = |more: &[&str]| {
        let args = ["compile", name(&model), "-o", name(&out)];
        fsc(&[&args, more].concat())
    };
    assert!(compile(&["--ranks", "2"]).status.success());
    let profile = profile_of(&out);
    fs_schedule::profile::write(&path, &profile).expect("the profile is written");
    for strategy in ["serial", "prefetch", "pec", "auto"] {
        // The number of ranks is the profile's.
        let run = compile(&["--strategy", strategy, "--profile", name(&path)]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        assert!(
            text(&run.stderr)
                .contains("on profiled machine (2 ranks on 4 cores, link 1 GB/s, 7 ms) (2 ranks)"),
            "{run:?}"
        );
        let explained = fsc(&["explain", name(&out)]);
        assert!(text(&explained.stdout).contains("profiled machine"), "{explained:?}");
    }
    assert!(compile(&["--strategy", "serial", "--profile", name(&path)]).status.success());
    let s = fs_schedule::read(&out).expect("a schedule");
    // Ids and gradients of the replicated table, and two rounds of sums, each with the link's latency.
    let step = s.prediction.expect("a prediction").step;
    assert!((4.0 * 7e-3..4.4 * 7e-3).contains(&step), "{step}");
}

/// What samples cost is the profile's, if it says so and the model does not.
#[test]
fn profiles_price_samples() {
    let (dir, model) = folder(MODEL);
    let (out, path) = (dir.path().join("s.json"), dir.path().join("p.json"));
    let compile =
        |more: &[&str]| fsc(&[&["compile", name(&model), "-o", name(&out), "--ranks", "2"], more].concat());
    let cost = || fs_schedule::read(&out).expect("a schedule").settings.balance.expect("a balance").cost;
    assert!(compile(&["--balance", "on"]).status.success());
    let arithmetic = cost();
    let mut profile = profile_of(&out);
    let groups = arithmetic.groups.len();
    let group = fs_schedule::GroupCost { linear: 3e-7, square: 4e-9 };
    let measured = fs_schedule::CostModel { constant: 2e-6, groups: vec![group; groups] };
    for (samples, expected) in [(None, &arithmetic), (Some(measured.clone()), &measured)] {
        profile.samples = samples;
        fs_schedule::profile::write(&path, &profile).expect("the profile is written");
        let run = compile(&["--balance", "on", "--profile", name(&path)]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        assert_eq!(cost(), *expected);
    }
    profile.samples = Some(fs_schedule::CostModel { groups: vec![group; groups + 1], ..measured });
    fs_schedule::profile::write(&path, &profile).expect("the profile is written");
    let run = compile(&["--balance", "on", "--profile", name(&path)]);
    let expected = format!("it has costs of {} groups of sequences, the model has {groups}", groups + 1);
    assert!(!run.status.success() && text(&run.stderr).contains(&expected), "{run:?}");
}

#[test]
fn profiles_that_cannot_be_used() {
    let (dir, model) = folder(MODEL);
    let (out, path) = (dir.path().join("s.json"), dir.path().join("p.json"));
    assert!(fsc(&["compile", name(&model), "-o", name(&out), "--ranks", "2"]).status.success());
    let profile = profile_of(&out);
    let untouched = fs::read(&out).expect("the schedule");
    let with = |content: &str, more: &[&str], parts: &[&str]| {
        fs::write(&path, content).expect("the profile is written");
        let args = ["compile", name(&model), "-o", name(&out), "--profile", name(&path)];
        fails(&[&args, more].concat(), parts);
        assert_eq!(fs::read(&out).expect("the schedule"), untouched, "nothing is half-written");
    };
    let good = profile.to_text();
    with("", &[], &["p.json is not a profile: it is empty", "fsx profile"]);
    with(&good[..good.len() / 2], &[], &["is not a profile"]);
    with(&fs::read_to_string(&out).expect("text"), &[], &["its `format` is not `fs-profile`"]);
    let version = format!("\"version\": {}", profile.version);
    with(&good.replace(&version, "\"version\": 99"), &[], &["profile version 99"]);
    with(&good.replace("1000000000.0", "0.0"), &[], &["`bandwidth` of `link` is 0e0"]);
    with(&good.replace("0.00001", "-0.00001"), &[], &["the profile is damaged", "measure it again"]);
    with(&good.replace("0.00001", "1e18"), &[], &["the profile is damaged"]);
    with(
        &good.replace("\"tiny\"", "\"other\""),
        &[],
        &["of another schedule", "model `other`, this is `tiny`"],
    );
    with(&good, &["--ranks", "4"], &["measured on 2 rank(s), this is for 4"]);
    let sizes = vec![("B".into(), 1e9), ("T0".into(), 6.0), ("Q0".into(), 18.0)];
    let large = fs_schedule::Profile { sizes, ..profile.clone() };
    with(&large.to_text(), &[], &["size `B` is 1000000000, but a batch has at most", "measure it again"]);
    let rows = profile.rows[0].clone();
    let mut many = fs_schedule::profile::Rows { sent: 11.0, ..rows.clone() };
    for counts in &mut many.reuse {
        for list in counts.forward.iter_mut().chain(&mut counts.backward) {
            for n in list.iter_mut() {
                *n *= 11.0 / 5.0;
            }
        }
    }
    for (bad, says) in [
        (Vec::new(), "rows of `items` are missing"),
        (vec![rows.clone(), rows.clone()], "rows of `items` is there twice"),
        (vec![many], "is 11, but a batch has at most 10"),
        (
            vec![fs_schedule::profile::Rows { busiest: 4.1, ..rows.clone() }],
            "`busiest` of rows of `items` is 4.1e0",
        ),
        (
            vec![fs_schedule::profile::Rows { reuse: Vec::new(), ..rows }],
            "reuse distances of rows of `items` are missing",
        ),
    ] {
        with(&fs_schedule::Profile { rows: bad, ..profile.clone() }.to_text(), &[], &[says]);
    }
    for (bad, says) in [
        (vec![("B".into(), 2.0), ("T0".into(), 6.0)], "size `Q0` is missing"),
        (
            vec![("B".into(), 2.0), ("T0".into(), 6.0), ("Q0".into(), 18.0), ("T9".into(), 1.0)],
            "size `T9` is of lengths that the model does not have",
        ),
    ] {
        with(&fs_schedule::Profile { sizes: bad, ..profile.clone() }.to_text(), &[], &[says]);
    }
    with(&good.replace("2 ranks on 4 cores", "\\u001b[31m"), &[], &["characters that steer a terminal"]);
    with(&good.replace("2 ranks on 4 cores", &"x".repeat(300)), &[], &["has more than 200 bytes"]);
    let shape = &profile.shape;
    with(&good.replace(shape, "sha256:0"), &[], &["of another schedule", "other tables, inputs"]);
    fails(
        &["compile", name(&model), "-o", name(&out), "--profile", "nowhere.json"],
        &["cannot read profile nowhere.json"],
    );
}
