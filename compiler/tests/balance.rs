//! What samples of unlike lengths cost is predicted, with and without giving them to ranks, and decides whether that is
//! done where a model does not say.

use fs_compiler::sched::explain::explain;
use fs_compiler::search::{candidates, search};
use fs_compiler::viz::{Timeline, html, svg};
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Program;
use fs_schedule::{Action, Engine, LengthDistribution, RankLimit, Schedule, Stragglers};
use fs_workload::lengths::LengthLaw;
use fs_workload::random::RandomKey;

const UNEVEN: &str = "lognormal(mean: 100, sigma: 1, max: 400)";

/// A dense stack over tokens: work is in proportion to them. Equal lengths have the same mean.
fn program(lengths: &str, train: &str) -> Program {
    program_of(400, lengths, train)
}

fn program_of(max: u32, lengths: &str, train: &str) -> Program {
    let text = format!(
        "model m {{
  table items {{ rows 5000  dim 64  optimizer sgd(lr: 0.1) }}
  input history: ids(items) {{ max {max} }}
  input click: label like history
  let x = lookup(history)
  repeat 4 as layers {{ x = x + linear(silu(linear(x, 256)), 64) }}
  loss bce_with_logits(linear(x, 1, name: \"head\"), click, normalize: tokens)
}}
train {{ batch 64  steps 2  optimizer sgd(lr: 0.1)  {train} }}
{lengths}"
    );
    let loaded = fs_dsl::check_text("model.fs", &text);
    let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    loaded.program.unwrap_or_else(|| panic!("{rendered}"))
}

fn generated(lengths: &str, train: &str) -> Program {
    program(&format!("workload w {{ generate {{ lengths {lengths}  ids zipf(1.05) }} }}"), train)
}

fn compile(program: &Program, strategy: Strategy, ranks: u32) -> Schedule {
    match compile_with(program, &CompileOptions::new(strategy, ranks)) {
        Ok(compiled) => compiled.schedule,
        Err(e) => panic!("{e}"),
    }
}

fn compute(s: &Schedule) -> f64 {
    let busy = &s.prediction.as_ref().expect("a prediction").busy;
    busy.iter().find(|b| b.engine == Engine::Compute).map_or(0.0, |b| b.time)
}

fn stragglers(s: &Schedule) -> Option<Stragglers> {
    s.prediction.as_ref().expect("a prediction").stragglers.clone()
}

fn step(s: &Schedule) -> f64 {
    s.prediction.as_ref().expect("a prediction").step
}

/// The greatest number of tokens of a rank over the mean, by other draws of the same law.
fn drawn(ranks: u64) -> f64 {
    let lengths = LengthDistribution::Lognormal { mean: 100.0, sigma: 1.0, min: 1, max: Some(400) };
    let law = LengthLaw::new(lengths, 400).expect("a law");
    let key = |batch: u64, sample: u64| RandomKey { seed: 77, stream: 1, step: batch * 64 + sample };
    drawn_of(&law, (64, ranks), 600, key, |tokens| tokens).0
}

/// The slowest rank's cost over the mean's of all batches together, as reports count it; and the mean of what it is of each.
fn drawn_of(
    law: &LengthLaw,
    (batch_size, ranks): (u64, u64),
    batches: u64,
    key: impl Fn(u64, u64) -> RandomKey,
    cost: impl Fn(f64) -> f64,
) -> (f64, f64) {
    let (mut most, mut all, mut of_each) = (0.0, 0.0, 0.0);
    for batch in 0..batches {
        let of = |rank: u64| -> f64 {
            let samples = rank * batch_size / ranks..(rank + 1) * batch_size / ranks;
            samples.map(|sample| cost(f64::from(law.draw(key(batch, sample))))).sum()
        };
        let costs: Vec<f64> = (0..ranks).map(of).collect();
        let slowest = costs.iter().copied().fold(0.0, f64::max);
        let mean = costs.iter().sum::<f64>() / ranks as f64;
        most += slowest;
        all += mean;
        of_each += slowest / mean;
    }
    (most / all, of_each / batches as f64)
}

#[test]
fn the_slowest_rank_is_predicted() {
    for ranks in [2, 4] {
        let found = drawn(ranks.into());
        assert!(found > 1.05, "{found}");
        let even = compile(&generated("fixed(100)", "balance off"), Strategy::Serial, ranks);
        assert_eq!(stragglers(&even), None);
        for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
            let home = compile(&generated(UNEVEN, "balance off"), strategy, ranks);
            let expected = stragglers(&home).expect("lengths differ");
            assert!((expected.at_home / found - 1.0).abs() < 0.04, "{ranks}: {expected:?} for {found}");
            // All work but that on rows and parameters is in proportion to tokens.
            let longer = compute(&home) / compute(&even);
            assert!((longer / expected.at_home - 1.0).abs() < 0.04, "{ranks}: {longer} for {expected:?}");
            assert!(step(&home) > 0.95 * found * step(&even) || strategy != Strategy::Serial);
            let planned = compile(&generated(UNEVEN, "balance on"), strategy, ranks);
            let same = stragglers(&planned).expect("lengths differ");
            assert!((same.at_home - expected.at_home).abs() < 1e-9 && same.planned < 1.02, "{same:?}");
            let longer = compute(&planned) / compute(&even);
            assert!((longer / same.planned - 1.0).abs() < 0.04, "{ranks}: {longer} for {same:?}");
            assert!(step(&planned) < step(&home), "{ranks} {strategy:?}");
        }
    }
}

/// A batch in which one sample is very dear is a longer one, and counts as such: of the very batches that are drawn the sum of the
/// slowest rank's costs over that of the mean's, and not the mean of what each batch says.
#[test]
fn heavy_laws_are_predicted_as_reports_count() {
    let lengths = LengthDistribution::Lognormal { mean: 100.0, sigma: 1.2, min: 1, max: Some(1500) };
    let law = LengthLaw::new(lengths, 1500).expect("a law");
    let key =
        |batch: u64, sample: u64| RandomKey { seed: batch << 32 | sample, stream: 0xF500_0002, step: 0 };
    let (found, of_each) = drawn_of(&law, (16, 4), 128, key, |tokens| tokens * tokens);
    let law =
        "workload w { generate { lengths lognormal(mean: 100, sigma: 1.2, max: 1500)  ids zipf(1.05) } }";
    let mut program = program_of(1500, law, "balance cost(0, 0, 1)");
    program.train.batch = 16;
    let expected = stragglers(&compile(&program, Strategy::Serial, 4)).expect("lengths differ");
    assert!(found > 1.05 * of_each, "{found} {of_each}");
    assert!((expected.at_home / found - 1.0).abs() < 1e-6, "{expected:?} for {found}");
}

/// Where transfers stop compute, ranks wait for each other in every microbatch.
#[test]
fn ranks_meet_in_every_microbatch_of_serial() {
    let wait = |strategy, train: &str| {
        stragglers(&compile(&generated(UNEVEN, train), strategy, 4)).expect("lengths differ").at_home
    };
    let whole = wait(Strategy::Serial, "balance off");
    let parts = wait(Strategy::Serial, "balance off  microbatches 4");
    assert!(parts > 1.1 * whole, "{parts} and {whole}");
    assert!((wait(Strategy::Pec, "balance off  microbatches 4") - whole).abs() < 1e-9);
}

#[test]
fn the_compiler_balances_where_it_pays() {
    let balanced = |p: &Program, strategy, ranks| {
        let s = compile(p, strategy, ranks);
        let moves = s.train.ops.iter().any(|op| matches!(op.action, Action::Dispatch { .. }));
        assert_eq!(moves, s.settings.balance.is_some());
        (moves, stragglers(&s).and_then(|s| s.compared))
    };
    for text in ["", "balance auto"] {
        let uneven = generated(UNEVEN, text);
        let mut known = None;
        for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
            let (on, compared) = balanced(&uneven, strategy, 4);
            let compared = compared.expect("both were predicted");
            assert!(on && compared.planned * 1.01 <= compared.at_home, "{compared:?}");
            // All strategies have one plan.
            assert_eq!(*known.get_or_insert(compared), compared);
        }
        // What was compared are the steps that `serial` has.
        let forced = |train| step(&compile(&generated(UNEVEN, train), Strategy::Serial, 4));
        let known = known.expect("compared");
        assert_eq!((known.at_home, known.planned), (forced("balance off"), forced("balance on")));
        assert_eq!(balanced(&uneven, Strategy::Serial, 1), (false, None));
        assert_eq!(balanced(&generated("fixed(100)", text), Strategy::Serial, 4), (false, None));
        // A hundred times as much work for each sample as for its tokens: nothing is gained.
        assert!(!balanced(&generated("uniform(100, 101)", text), Strategy::Pec, 4).0);
        // The library reads no data: what was counted there is handed to it.
        let file = "workload w { safetensors \"d.safetensors\" }";
        assert_eq!(balanced(&program(file, text), Strategy::Serial, 4), (false, None));
        assert!(!balanced(&program("", text), Strategy::Serial, 4).0);
        let best = search(&uneven, &CompileOptions::new(Strategy::Serial, 4), candidates(None));
        assert!(best.expect("a schedule").compiled.schedule.settings.balance.is_some());
    }
    assert!(!balanced(&generated(UNEVEN, "balance off"), Strategy::Pec, 4).0);
    let options = CompileOptions::new(Strategy::Pec, 4).balance(false);
    let forced = compile_with(&generated(UNEVEN, ""), &options).expect("it compiles").schedule;
    assert!(forced.settings.balance.is_none() && stragglers(&forced).is_some_and(|s| s.compared.is_none()));
}

#[test]
fn what_the_language_says_of_a_plan_stands_in_the_schedule() {
    let balance = |text: &str| {
        let s = compile(&generated(UNEVEN, text), Strategy::Serial, 2);
        s.settings.balance.expect("balanced")
    };
    let given = balance("balance on(limit: 4096 tokens, equal_counts: on)");
    assert_eq!((given.limit, given.equal_counts), (Some(RankLimit::Tokens(4096)), true));
    assert!(given.cost.groups[0].linear > 0.0, "derived: {:?}", given.cost);
    let given = balance("balance cost(1, 2, 3, limit: 64 KiB)");
    assert_eq!((given.limit, given.equal_counts), (Some(RankLimit::Bytes(65_536)), false));
    assert_eq!((given.cost.constant, given.cost.groups[0].square), (1.0, 3.0));
    // A limit below the mean cannot be kept, one just above it is expected to bind.
    let expected = |text: &str| stragglers(&compile(&generated(UNEVEN, text), Strategy::Serial, 2));
    let free = expected("balance cost(1, 0, 0)").expect("lengths differ");
    let tight = expected("balance cost(1, 0, 0, limit: 3_500 tokens)").expect("lengths differ");
    assert!(free.moved < 1e-9 && tight.moved > 0.01, "{free:?} {tight:?}");
}

#[test]
fn an_explanation_says_what_a_plan_buys_and_where_it_sits() {
    let said = |train: &str| {
        let s = compile(&generated(UNEVEN, train), Strategy::Pec, 4);
        explain(&s).and_then(|e| e.text(None)).expect("an explanation")
    };
    let on = said("");
    for part in [
        "samples: ranks wait",
        "and would wait",
        "they move in `dispatch`",
        "chosen because a step of `serial`",
    ] {
        assert!(on.contains(part), "{part}: {on}");
    }
    let off = said("balance off");
    assert!(off.contains("(`balance on`)") && !off.contains("dispatch") && !off.contains("chosen"), "{off}");
    // Shares of a batch, as ranks meet once in one; of a microbatch where they meet in each.
    assert!(!said("microbatches 4").contains("microbatches, if samples stay"));
    let parts = compile(&generated(UNEVEN, "microbatches 4"), Strategy::Serial, 4);
    let parts = explain(&parts).and_then(|e| e.text(None)).expect("an explanation");
    assert!(parts.contains("for the slowest, in each of 4 microbatches, if samples stay"), "{parts}");
}

/// Of a data file that no profile has counted it is said why samples stay, and that shares are of assumed lengths.
#[test]
fn an_explanation_says_that_lengths_are_not_known() {
    let said = |lengths: &str, train: &str| {
        let s = compile(&program(lengths, train), Strategy::Pec, 4);
        explain(&s).and_then(|e| e.text(None)).expect("an explanation")
    };
    let file = "workload w { safetensors \"d.safetensors\" }";
    for lengths in [file, ""] {
        let stay = said(lengths, "");
        let why = "lengths are not known without data or a profile, so with `balance auto` samples stay";
        assert!(stay.contains(why) && stay.contains("(`balance on`)"), "{stay}");
        let on = said(lengths, "balance on");
        assert!(on.contains("lengths are not known; as assumed, ranks wait"), "{on}");
    }
    let known = format!("workload w {{ generate {{ lengths {UNEVEN}  ids zipf(1.05) }} }}");
    assert!(!said(&known, "balance off").contains("not known"));
}

/// Few samples a rank, of which one is longer than the mean rank's all: that no plan helps is said.
#[test]
fn an_explanation_says_what_no_plan_avoids() {
    let said = |ranks| {
        let s = compile(&generated(UNEVEN, "balance on"), Strategy::Pec, ranks);
        let bound = stragglers(&s).expect("lengths differ").bound;
        (bound, explain(&s).and_then(|e| e.text(None)).expect("an explanation"))
    };
    let (bound, few) = said(32);
    let share = 100.0 * (1.0 - 1.0 / bound);
    assert!(
        share > 5.0 && few.contains(&format!("; no plan avoids {share:.1}%, for which single samples")),
        "{few}"
    );
    assert!(!said(2).1.contains("no plan avoids"));
}

/// A limit that drawn batches do not keep: that is said, and not that samples are long; a limit that would do is one.
#[test]
fn a_limit_that_cannot_be_kept_is_said() {
    let with = |lengths: &str, limit: u64| {
        let train = format!("balance cost(1, 1, 0, limit: {limit} tokens)");
        compile(&generated(lengths, &train), Strategy::Pec, 2)
    };
    let said = |s: &Schedule| explain(s).and_then(|e| e.text(None)).expect("an explanation");
    let warned = |s: &Schedule| explain(s).and_then(|e| e.warning);
    let free = stragglers(&compile(&generated(UNEVEN, "balance cost(1, 1, 0)"), Strategy::Pec, 2));
    let tight = with(UNEVEN, 2_900);
    let expected = stragglers(&tight).expect("lengths differ");
    let unkept = expected.unkept.expect("it cannot be kept");
    assert!(unkept.drawn == 128 && (1..128).contains(&unkept.batches), "{unkept:?}");
    assert_eq!(expected.bound, free.expect("lengths differ").bound, "what samples bound is another thing");
    let text = said(&tight);
    let why = format!(
        "in {} of 128 batches drawn no plan was found that keeps the limit of 2900 tokens a rank, and such a batch ends \
         the run; {} tokens would do for these; the step is predicted as if samples stayed, which has ranks wait",
        unkept.batches, unkept.least
    );
    assert!(text.contains(&why) && !text.contains("single samples"), "{text}");
    assert!(text.contains("; where a plan is found "), "{text}");
    assert!(warned(&tight).is_some_and(|warning| why.starts_with(&warning)));
    // It is the least to a hundredth.
    let least = with(UNEVEN, unkept.least);
    assert!(warned(&least).is_none() && said(&least).contains("samples: ranks wait"));
    assert!(warned(&with(UNEVEN, unkept.least - unkept.least / 50)).is_some());
    // Pictures do not show a plan that is not there.
    let timeline = Timeline::of(&tight).expect("a timeline");
    let shown = html::Shown { timeline: timeline.clone(), measured: None, name: "s.json".into() };
    for text in [svg::draw(&[timeline], &svg::Options::default()), html::page(&[shown], 3)] {
        let title = format!("no plan keeps the limit in {} of 128 batches drawn", unkept.batches);
        assert!(text.contains(&title) && !text.contains("given to ranks"), "{text}");
    }
    // All lengths equal: 64 samples of 100 ids on two ranks.
    assert!(warned(&with("fixed(100)", 3_200)).is_none());
    let short = stragglers(&with("fixed(100)", 3_199)).and_then(|s| s.unkept).expect("it cannot be kept");
    assert_eq!((short.batches, short.drawn, short.least), (128, 128, 3_200));
    // One sample is more than a rank can hold.
    assert!(warned(&with("fixed(100)", 99)).is_some_and(|warning| warning.contains("3200 tokens would do")));
}

/// Of batches too large to be drawn some samples stand for all: waits are expected to fall as the root of how many a rank has, and
/// limits are held against as much as a rank really reads.
#[test]
fn large_batches_are_expected_to_wait_too() {
    let with = |batch: u32, ranks: u32, train: &str| {
        let mut program = generated(UNEVEN, train);
        program.train.batch = batch;
        stragglers(&compile(&program, Strategy::Serial, ranks)).expect("lengths differ")
    };
    for ranks in [2, 4, 16] {
        let waits = |each: u32| with(each * ranks, ranks, "balance cost(1, 1, 0)").at_home - 1.0;
        let drawn = waits(1 << 10) * f64::from(1 << 10).sqrt();
        for each in [1 << 12, 1 << 14, 1 << 15, 1 << 16].into_iter().filter(|each| each * ranks <= 1 << 20) {
            let over = waits(each) * f64::from(each).sqrt() / drawn;
            // As near as 8 batches are.
            assert!((0.6..1.67).contains(&over), "{ranks} ranks of {each}: {over}");
        }
    }
    let with = |batch, train: &str| with(batch, 4, train);
    // 262,144 samples a rank of about 100 ids each.
    let limit = |tokens: u32| with(1 << 20, &format!("balance cost(1, 1, 0, limit: {tokens} tokens)")).unkept;
    assert_eq!(limit(27_000_000), None);
    let unkept = limit(20_000_000).expect("it cannot be kept");
    assert!((26_000_000..27_000_000).contains(&unkept.least), "{unkept:?}");
}

/// Where samples cost all ranks the same and giving them to ranks was asked for, that is said.
#[test]
fn samples_of_one_cost_are_said_to_stay() {
    let said = |train: &str| {
        let schedule = compile(&generated(UNEVEN, train), Strategy::Serial, 4);
        explain(&schedule).and_then(|e| e.text(None)).expect("an explanation")
    };
    let same =
        "samples: what is known of lengths has them cost all ranks the same, and none is expected to move";
    assert!(said("balance cost(1, 0, 0)").contains(same), "{}", said("balance cost(1, 0, 0)"));
    assert!(!said("balance off").contains("none is expected to move"));
}

/// Whatever was asked for, one rank works on all that it reads.
#[test]
fn samples_of_one_rank_stay() {
    let said = |ranks| {
        let schedule = compile(&generated(UNEVEN, "balance on"), Strategy::Serial, ranks);
        explain(&schedule).and_then(|e| e.text(None)).expect("an explanation")
    };
    let stays = "samples stay: there is one rank";
    assert!(said(1).contains(stays) && !said(1).contains("samples move"), "{}", said(1));
    assert!(!said(2).contains(stays) && said(2).contains("samples move at"), "{}", said(2));
}

/// What no plan avoids bounds steps in microbatches too, because they take no less than their batch.
#[test]
fn what_no_plan_avoids_bounds_microbatches_too() {
    let of = |strategy, train: &str| {
        stragglers(&compile(&generated(UNEVEN, train), strategy, 16)).expect("lengths differ")
    };
    let parts = of(Strategy::Serial, "balance on  microbatches 4");
    let whole = of(Strategy::Pec, "balance on  microbatches 4");
    assert_eq!(parts.bound, whole.bound);
    assert!(parts.planned >= whole.planned && whole.planned >= whole.bound * (1.0 - 1e-9), "{parts:?}");
}

/// One number for one step: the one that decided, and the one of where samples move.
#[test]
fn a_step_is_said_with_one_number() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/histories.fs");
    let program = fs_dsl::load(&path).program.expect("the example checks");
    let compiled = compile_with(&program, &CompileOptions::new(Strategy::Serial, None)).expect("it compiles");
    let text = explain(&compiled.schedule).and_then(|e| e.text(None)).expect("an explanation");
    let number = |before: &str, after: &str| {
        let rest = text.split(before).nth(1).unwrap_or_else(|| panic!("{before}: {text}"));
        rest.split(after).next().unwrap_or_default().to_owned()
    };
    let decided = number("a step of `serial` is expected to take ", " balanced");
    let moves = number("\nsamples move at `rows`: ", " a serial step");
    assert_eq!(decided, moves, "{text}");
}

/// What is said of sizes is the slowest rank's, also where no plan evens samples out: two a rank.
#[test]
fn sizes_are_those_of_the_slowest_rank() {
    for (train, planned) in [("balance off", false), ("balance on", true)] {
        let s = compile(&generated(UNEVEN, train), Strategy::Serial, 32);
        let sizes = &s.prediction.as_ref().expect("a prediction").sizes;
        let tokens = sizes.iter().find(|(name, _)| name == "T0").expect("tokens").1;
        let expected = stragglers(&s).expect("lengths differ");
        let most = if planned { expected.planned } else { expected.at_home };
        assert!(most > 1.3, "{expected:?}");
        assert!((tokens / (2.0 * 100.0 * most) - 1.0).abs() < 0.06, "{train}: {tokens} for {expected:?}");
    }
}

/// The pictures show ranks side by side where they differ, and nothing where they do not.
#[test]
fn pictures_show_who_waits() {
    let pictures = |lengths: &str, train: &str, ranks: u32| {
        let timeline =
            Timeline::of(&compile(&generated(lengths, train), Strategy::Pec, ranks)).expect("a timeline");
        let shown = html::Shown { timeline: timeline.clone(), measured: None, name: "s.json".into() };
        [svg::draw(&[timeline], &svg::Options::default()), html::page(&[shown], 3)]
    };
    for text in pictures("fixed(100)", "", 4) {
        assert!(!text.contains("ranks wait"), "{text}");
    }
    for (train, this) in [("balance off", "where they are read"), ("balance on", "given to ranks")] {
        for text in pictures(UNEVEN, train, 4) {
            assert!(text.contains(&format!("{this} (this schedule): ranks wait")), "{text}");
            assert_eq!(text.matches("ranks wait").count(), 2);
            for name in ["slowest", "2nd", "3rd", "fastest"] {
                assert!(text.matches(&format!(">{name}<")).count() == 2, "{name}: {text}");
            }
        }
    }
    // Of many ranks some stand for all.
    for text in pictures(UNEVEN, "balance off", 32) {
        assert!(
            text.contains("slowest") && text.contains(" of 32") && text.matches(">fastest<").count() == 2
        );
    }
    let s =
        stragglers(&compile(&generated(UNEVEN, "balance off"), Strategy::Pec, 32)).expect("lengths differ");
    assert!((s.ranks[0].at_home - s.at_home).abs() < 1e-9 && (s.ranks[0].planned - s.planned).abs() < 1e-9);
    assert!(s.ranks.windows(2).all(|r| r[0].at_home >= r[1].at_home && r[0].planned >= r[1].planned));
}
