//! Whether samples are given to ranks, where the model leaves it to the compiler (`balance auto`): where lengths are known
//! to differ and a step is expected to be shorter by so much that it pays. And where they go, before their ids are looked at
//! or as what is made of their rows: where a step is expected to be shorter.
//!
//! The steps that are compared are those of `serial`, whatever strategy is asked for: nothing hides there what moving
//! samples costs, and all strategies of a model have one plan, so they train to the same bits.

use fs_dsl::checked::{Balancing, DataSource, Program};
use fs_schedule::action::Effect;
use fs_schedule::{Compared, Settings, Strategy};

use super::{Aim, CompileOptions, Compiled};
use crate::distribution::At;
use crate::emit::{self, Priced};
use crate::ir::Module;
use crate::ir::attr::typed;
use crate::passes::manager;
use crate::sched::{self, Bound, Refused, policy};

/// How much longer a step must be without: what is gained must be more than what is not known.
const PAYS: f64 = 1.01;

/// What was decided.
#[derive(Debug, Clone, Default)]
pub(crate) struct Decided {
    /// None: as options and model say.
    balance: Option<bool>,
    compared: Option<Compared>,
    place: Option<Place>,
}

/// Where samples go.
#[derive(Debug, Clone)]
struct Place {
    at: At,
    /// A serial step.
    step: f64,
    /// For people: what it takes, beside what it would take elsewhere.
    said: String,
}

impl Decided {
    /// The options with what was decided.
    pub(crate) fn options(&self, options: &CompileOptions) -> CompileOptions {
        let at = self.place.as_ref().map(|place| place.at);
        options.clone().balance(self.balance.or(options.balance)).balance_at(at.or(options.balance_at))
    }

    /// Leaves in a schedule what decided.
    pub(crate) fn note(&self, compiled: &mut Compiled) {
        let s = &mut compiled.schedule;
        if let Some(stragglers) = s.prediction.as_mut().and_then(|p| p.stragglers.as_mut()) {
            stragglers.compared = self.compared;
        }
        let Some(Place { said, .. }) = &self.place else { return };
        for op in s.train.ops.iter_mut().filter(|op| op.action.has(Effect::AssignsBatch)) {
            op.reason = format!("{}; {said}", op.reason);
        }
        compiled.module.say_of("train.dispatch", said);
    }
}

/// Decides for an imported module. What cannot be scheduled is as it was without: the error comes of compiling it.
pub(crate) fn decide(program: &Program, module: &Module, aim: &Aim, options: &CompileOptions) -> Decided {
    let left = options.balance.is_none() && program.train.balance == Balancing::Auto;
    // A profile has lengths of some samples, and so has what was counted in the data.
    let known = match program.workload.as_ref().map(|w| &w.source) {
        Some(DataSource::Generate { .. }) => true,
        _ => aim.counts.is_some() || aim.profile.as_ref().is_some_and(|p| !p.lengths.is_empty()),
    };
    if aim.ranks < 2 {
        return Decided::default();
    }
    let mut decided = Decided::default();
    if left && known {
        decided = compare(module, aim, options).unwrap_or_default();
    }
    let asked = options.balance.unwrap_or(matches!(program.train.balance, Balancing::On(_)));
    if decided.balance.unwrap_or(asked) {
        decided.place = place(module, aim, options);
        // Whether it pays was seen where samples go first; what is said is of where they do go, which takes no longer.
        if let (Some(compared), Some(place)) = (&mut decided.compared, &decided.place) {
            compared.planned = place.step;
        }
    }
    decided
}

/// The operations of a serial step, not in order yet.
fn listed(module: &Module, aim: &Aim, options: &CompileOptions) -> Option<Priced> {
    let options = options.clone().policy(policy::of(Strategy::Serial)).in_flight(None);
    let mut module = module.clone();
    let stages = aim.stages(&module, &options).ok()?;
    manager::run_to_compile(&mut module, &stages).ok()?;
    emit::priced(&module, aim.target(), aim.ranks, Strategy::Serial).ok()
}

/// How long they take, or what they cannot take less than if that is not below a limit.
fn step(listed: Priced, aim: &Aim, below: Option<f64>) -> Option<Result<f64, Bound>> {
    let asked = sched::Options::new(policy::of(Strategy::Serial)).below(below);
    match listed.ordered(aim.target(), &asked).ok()? {
        Ok(ordered) => ordered.schedule.prediction.map(|p| Ok(p.step)),
        Err(Refused::Beyond(bound)) => Some(Err(bound)),
        Err(Refused::Worse(_)) => None,
    }
}

/// Whether giving samples to ranks may make a step shorter: not where ranks have as much to do, or no plan helps.
fn may_gain(listed: &Priced, aim: &Aim) -> bool {
    listed.stragglers(aim.target()).is_some_and(|s| s.at_home >= PAYS * s.planned)
}

/// The operations of one of the microbatches, if there are several: what samples cost follows from them as from all, which take
/// as many times longer to list.
fn of_a_microbatch(module: &Module, aim: &Aim, options: &CompileOptions) -> Option<Priced> {
    let settings: Settings = typed(&module.attrs, "settings").ok()?;
    let microbatches = options.microbatches.unwrap_or(settings.microbatches);
    // A profile is of as many as were profiled.
    if microbatches < 2 || aim.profile.is_some() {
        return None;
    }
    let one = listed(module, aim, &options.clone().microbatches(1))?;
    Some(one.in_microbatches(microbatches))
}

fn compare(module: &Module, aim: &Aim, options: &CompileOptions) -> Option<Decided> {
    let of = |on| options.clone().balance(on);
    if of_a_microbatch(module, aim, &of(false)).is_some_and(|one| !may_gain(&one, aim)) {
        return None;
    }
    let at_home = listed(module, aim, &of(false))?;
    if !may_gain(&at_home, aim) {
        return None;
    }
    let at_home = step(at_home, aim, None)?.ok()?;
    let planned = step(listed(module, aim, &of(true))?, aim, None)?.ok()?;
    Some(Decided {
        balance: Some(planned * PAYS <= at_home),
        compared: Some(Compared { at_home, planned }),
        place: None,
    })
}

/// Where samples that move are expected to cost less, or where they are asked to go, beside what it would take elsewhere;
/// the same for all strategies, because the order of sums follows from it. Nothing where there is no choice.
fn place(module: &Module, aim: &Aim, options: &CompileOptions) -> Option<Place> {
    let of =
        |at, below| step(listed(module, aim, &options.clone().balance(true).balance_at(at))?, aim, below);
    let ms = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
    let asked = options.balance_at;
    let first = asked.unwrap_or_default();
    let (mut at, mut least) = (first, of(first, None)?.ok()?);
    let mut others = Vec::new();
    // What is said of single tables is said of `ids`: who reads samples asks for the rows of some.
    let fold = &options.tables.fold;
    let open = |other: At| match other {
        At::Rows => !fold.values().any(|on| *on),
        At::Folded => fold.is_empty(),
        At::Ids => true,
    };
    let open = |other: &At| *other != first && (asked.is_some() || open(*other));
    for other in At::ALL.into_iter().filter(open) {
        match of(other, Some(least)) {
            // A model that has nothing to move there.
            None => {}
            Some(Ok(step)) if step < least && asked.is_none() => {
                others.push(format!("at `{at}` {}", ms(least)));
                (at, least) = (other, step);
            }
            Some(Ok(step)) => others.push(format!("at `{other}` {}", ms(step))),
            Some(Err(bound)) => others.push(format!("at `{other}` at least {}", ms(bound.step))),
        }
    }
    if others.is_empty() {
        return None;
    }
    let why = if asked.is_some() { ", as asked" } else { "" };
    let said = format!("samples move at `{at}`{why}: {} a serial step; {}", ms(least), others.join(", "));
    Some(Place { at, step: least, said })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::import;

    /// One microbatch says as much of what samples cost as all.
    #[test]
    fn what_samples_cost_follows_from_one_microbatch() {
        for (microbatches, lengths, gains) in [
            (2, "lognormal(mean: 20, sigma: 1, max: 40)", true),
            (4, "uniform(1, 40)", true),
            (4, "fixed(20)", false),
        ] {
            let text = format!(
                "model tokens {{
                   table a {{ rows 2000  dim 16  optimizer sgd(lr: 0.05)  sharding row_wise }}
                   input x: ids(a) {{ max 40 }}
                   input click: label like x
                   let h = lookup(x)
                   let g = h + linear(silu(linear(layer_norm(h), 32)), 16)
                   loss bce_with_logits(linear(g, 1), click, normalize: tokens)
                 }}
                 train {{ batch 64  steps 6  microbatches {microbatches}  optimizer sgd(lr: 0.1) }}
                 workload w {{ generate {{ lengths {lengths}  ids uniform }} }}"
            );
            let program = fs_dsl::check_text("model.fs", &text).program.expect("the model checks");
            let options = CompileOptions::new(Strategy::Pec, 4).balance(false);
            let module = import(&program).expect("a module");
            let aim = Aim::new(&program, &options).expect("a machine");
            let one = of_a_microbatch(&module, &aim, &options).expect("several microbatches");
            let all = listed(&module, &aim, &options).expect("it is lowered");
            let found = [&one, &all].map(|listed| listed.stragglers(aim.target()));
            let numbers = |s: &Option<fs_schedule::Stragglers>| {
                s.as_ref().map_or([1.0; 3], |s| [s.at_home, s.planned, s.bound])
            };
            let [one_says, all_say] = [&found[0], &found[1]].map(numbers);
            for (a, b) in one_says.iter().zip(all_say) {
                assert!((a - b).abs() < 1e-6, "{microbatches} of {lengths}: {one_says:?} and {all_say:?}");
            }
            assert_eq!([may_gain(&one, &aim), may_gain(&all, &aim)], [gains; 2], "{lengths}: {all_say:?}");
        }
    }
}
