//! The search over candidates, and policies that are not in the table.

use std::path::Path;

use fs_compiler::sched::policy::Policy;
use fs_compiler::search::tables::search_within;
use fs_compiler::search::{Candidate, Cost, Verdict, candidates, search};
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::{Cluster, Program};
use fs_schedule::{Action, file};

/// An example with the next batch that divides over the ranks of a cluster.
fn example(name: &str, cluster: &Cluster) -> Program {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{name}.fs"));
    let mut program = fs_dsl::load(&path).program.expect("examples check");
    program.train.batch = program.train.batch.next_multiple_of(cluster.nodes * cluster.gpus_per_node);
    program
}

/// For each example the first of the best of all candidates, each compiled by itself.
#[test]
fn finds_what_compiling_each_candidate_finds() {
    let (mut pruned, mut scheduled) = (0, 0);
    for (name, cluster) in [
        ("movielens", "dgx_h100"),
        ("movielens", "h100x256"),
        ("ranking", "local"),
        ("dlrm", "gb200_nvl72"),
        ("histories", "h200"),
    ] {
        let cluster = fs_dsl::cluster::preset(cluster).expect("a preset");
        let program = example(name, &cluster);
        let options = CompileOptions::new(Strategy::Serial, None).cluster(cluster);
        let best = search(&program, &options, candidates(None)).expect("a schedule");
        let alone = |c: &Candidate| {
            let asked = options.clone().policy(c.policy).lookahead(c.lookahead);
            compile_with(&program, &asked).expect("a schedule").schedule
        };
        let schedules: Vec<_> = best.tried.iter().map(|t| alone(&t.candidate)).collect();
        let step = |i: usize| schedules[i].prediction.as_ref().expect("a prediction").step;
        let first = (0..schedules.len()).min_by(|a, b| step(*a).total_cmp(&step(*b))).expect("candidates");
        assert_eq!(best.chosen, first, "{name}");
        assert_eq!(file::to_text(&best.compiled.schedule), file::to_text(&schedules[first]), "{name}");
        for (i, tried) in best.tried.iter().enumerate() {
            match tried.verdict {
                Verdict::Scheduled(Cost { step: found, .. }) => {
                    scheduled += 1;
                    assert!(found.to_bits() == step(i).to_bits(), "{name}: {}", tried.candidate.describe());
                }
                Verdict::Pruned(bound) => {
                    pruned += 1;
                    assert!(bound.step <= step(i), "{name}: {bound:?} is no bound of {}", step(i));
                    assert!(bound.step >= step(best.chosen), "{name}: pruned what may be better");
                }
            }
        }
    }
    assert!(pruned >= 5 && scheduled >= 10, "{pruned} pruned, {scheduled} scheduled");
}

/// What exceeds the memory is chosen only if all do, and nothing is pruned by its step.
#[test]
fn limits_come_before_steps() {
    let cluster = fs_dsl::cluster::preset("h200").expect("a preset");
    let program = example("histories", &cluster);
    let options = CompileOptions::new(Strategy::Serial, None).cluster(cluster.clone());
    let best = search(&program, &options, candidates(Some(1))).expect("a schedule");
    let memory = |v: Verdict| match v {
        Verdict::Scheduled(cost) => Some(cost.beyond_memory),
        Verdict::Pruned(_) => None,
    };
    assert!(best.tried.iter().filter_map(|t| memory(t.verdict)).all(|beyond| beyond == 0));
    // A little less memory than the best needs: another one, or the same with fewer batches at once.
    let needs = best.compiled.schedule.prediction.as_ref().expect("a prediction").memory;
    let less = fs_dsl::checked::Cluster { memory: needs - 1, ..cluster };
    let options = CompileOptions::new(Strategy::Serial, None).cluster(less);
    match search(&program, &options, candidates(Some(1))) {
        Ok(best) => {
            let costs: Vec<Cost> = best
                .tried
                .iter()
                .filter_map(|t| match t.verdict {
                    Verdict::Scheduled(cost) => Some(cost),
                    Verdict::Pruned(_) => None,
                })
                .collect();
            let Verdict::Scheduled(chosen) = best.tried[best.chosen].verdict else {
                panic!("a schedule that was pruned cannot be chosen")
            };
            assert!(costs.iter().all(|c| chosen <= *c), "{costs:?}");
        }
        Err(e) => assert!(e.to_string().contains("memory") || e.to_string().contains("need"), "{e}"),
    }
}

/// All there is to adding a policy, but for its line in the table: blocks on gradients of rows only.
#[derive(Debug)]
struct GradientsBlock;

impl Policy for GradientsBlock {
    fn strategy(&self) -> Strategy {
        Strategy::Prefetch
    }
    fn name(&self) -> &'static str {
        "gradients-block"
    }
    fn summary(&self) -> &'static str {
        "Wait for gradients of rows, for nothing else"
    }
    fn blocks(&self, action: &Action) -> bool {
        matches!(action, Action::AllToAllGrads { .. } | Action::AllGatherGrads { .. } | Action::Apply { .. })
    }
}

#[test]
fn a_policy_is_one_value() {
    static OWN: GradientsBlock = GradientsBlock;
    let cluster = fs_dsl::cluster::preset("h100x256").expect("a preset");
    let program = example("movielens", &cluster);
    let options = CompileOptions::new(Strategy::Serial, None).cluster(cluster);
    let all = candidates(None).chain([Candidate::new(&OWN, None)]);
    let best = search(&program, &options, all).expect("a schedule");
    assert_eq!(best.tried.last().map(|t| t.candidate.describe()).as_deref(), Some("gradients-block"));
    let own = compile_with(&program, &options.clone().policy(&OWN)).expect("a schedule").schedule;
    assert!(fs_schedule::verify::verify(&own).is_empty());
    let prefetch =
        compile_with(&program, &options.policy(fs_compiler::sched::policy::of(Strategy::Prefetch)));
    let prefetch = prefetch.expect("a schedule").schedule;
    let step = |s: &fs_schedule::Schedule| s.prediction.as_ref().expect("a prediction").step;
    assert!(step(&own) < step(&prefetch), "less waits: {} and {}", step(&own), step(&prefetch));
}

/// A step that may be the shortest of all says why it is not taken.
#[test]
fn what_exceeds_a_limit_says_so() {
    let cluster = fs_dsl::cluster::preset("dgx_h100").expect("a preset");
    let program = example("ranking", &cluster);
    let pec: Vec<Candidate> = candidates(Some(1)).filter(|c| c.policy.tells_rows_apart()).collect();
    let tried = |options: &CompileOptions| {
        let best = search(&program, options, pec.iter().copied()).expect("a schedule");
        best.tried.iter().map(fs_compiler::search::Tried::describe).collect::<Vec<_>>()
    };
    let options = CompileOptions::new(Strategy::Serial, None).cluster(cluster.clone());
    assert_eq!(tried(&options), ["pec with lookahead 1"]);
    let most = |batches| tried(&options.clone().in_flight(batches));
    assert_eq!(most(1), ["pec with lookahead 1 (has a batch in flight more than asked for)"]);
    assert_eq!(most(2), ["pec with lookahead 1"]);
    let small = options.clone().cluster(Cluster { memory: 14_000_000, ..cluster });
    let [said] = &tried(&small)[..] else { panic!("one candidate") };
    assert!(
        said.starts_with("pec with lookahead 1 (needs ") && said.ends_with(", more than there is)"),
        "{said}"
    );
}

/// What is found does not depend on how many threads there are, and what is simulated neither.
#[test]
fn threads_change_nothing() {
    let table = |i: usize| {
        let (rows, dim) = ([300, 40_000, 1_000_000][i % 3], [8, 32, 64][i % 3]);
        let (optimizer, max) = (["sgd", "adagrad"][i % 2], [1, 10, 20, 5][i % 4]);
        format!(
            "table t{i} {{ rows {rows}  dim {dim}  optimizer {optimizer}(lr: 0.1)  sharding auto }} input x{i}: ids(t{i}) {{ max {max} }}"
        )
    };
    let tables: Vec<String> = (0..9).map(table).collect();
    let pooled: Vec<String> = (0..9).map(|i| format!("pool(x{i})")).collect();
    let text = format!(
        "model m {{ {} input y: label
         loss bce_with_logits(linear(concat({}), 1), y, normalize: samples) }}
         train {{ batch 512  steps 2 }}
         workload w {{ generate {{ lengths lognormal(mean: 8, sigma: 1, max: 20)  ids zipf(1.05) }} }}",
        tables.join("\n"),
        pooled.join(", ")
    );
    let open = fs_dsl::check_text("m.fs", &text).program.expect("it checks");
    let local = fs_dsl::cluster::preset("local").expect("a preset");
    let dlrm = example("dlrm", &local);
    for (program, ranks, most) in [(&open, 4, 2_000_000), (&open, 8, 2_000_000), (&dlrm, 8, 4_000_000)] {
        let options = CompileOptions::new(Strategy::Serial, ranks).cluster(local.clone());
        let found = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            let search = || search_within(program, &options, candidates(None), most).expect("a schedule");
            let (best, outcome) = pool.install(search);
            assert_eq!(outcome.defects, 0);
            (file::to_text(&best.compiled.schedule), outcome.simulated, outcome.scheduled)
        };
        let one = found(1);
        assert!(one.1 > most, "{} simulated", one.1);
        for threads in [2, 5] {
            assert!(found(threads) == one, "{ranks} ranks on {threads} threads");
        }
    }
}
