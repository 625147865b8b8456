//! The table of actions for readers: a part of docs/schedule.md.

use std::fmt::Write as _;

use super::{Action, At, Effect, Facts, Flops, Learns, Memory, Payload, Peers, Phase, Sizes};

/// The parts of a step with their headings, in order.
const PHASES: [(Phase, &str); 8] = [
    (Phase::Load, "Batch"),
    (Phase::Balance, "Balance"),
    (Phase::InputDist, "Input dist"),
    (Phase::OutputDist, "Lookup and output dist"),
    (Phase::Model, "Model"),
    (Phase::GradientDist, "Gradient dist and apply"),
    (Phase::DenseUpdate, "Dense gradients"),
    (Phase::Evaluation, "Evaluation"),
];

/// All actions by the part of a step that they belong to, as Markdown.
pub fn document() -> String {
    let mut text = String::new();
    let all: Vec<(Action, &str)> = Action::samples().into_iter().zip(Action::summaries()).collect();
    for (phase, heading) in PHASES {
        let _ = write!(
            text,
            "### {heading}\n\n| action | what it does | between ranks | touches | adds into | learns | arithmetic | memory |\n|---|---|---|---|---|---|---|---|\n"
        );
        for (action, summary) in all.iter().filter(|(a, _)| a.facts().phase == phase) {
            let f = action.facts();
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} | {} | {} | {} | {} |",
                action.name(),
                summary.replace('|', "\\|"),
                transfer(&f),
                f.effects.iter().map(|e| effect(*e)).collect::<Vec<_>>().join(", "),
                results(&f),
                learns(f.learns),
                flops(f.flops),
                memory(f.memory),
            );
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn transfer(f: &Facts<'_>) -> String {
    let Some(t) = f.transfer else { return String::new() };
    let payload = match t.payload {
        Payload::Ids => "ids",
        Payload::Asked => "ids and for whom",
        Payload::Classes => "classes",
        Payload::Rows => "rows",
        Payload::Gradients => "gradients",
        Payload::Sums => "dense gradients",
        Payload::Ranks => "queries, scores, counts",
        Payload::Lengths => "lengths",
        Payload::Samples => "samples",
        Payload::Values => "values of samples",
    };
    let peers = match t.peers {
        Peers::ToOwners => "to owners",
        Peers::FromOwners => "from owners",
        Peers::Everyone => "to everyone",
        Peers::ToAssigned => "to who works on them",
        Peers::FromAssigned => "to who read them",
        Peers::Reduce => "summed for everyone",
    };
    let rounds = match t.peers {
        Peers::Reduce => format!(", {} rounds, or 4 over several nodes", t.rounds),
        _ if t.rounds == 1 => String::new(),
        _ => format!(", {} rounds", t.rounds),
    };
    format!("{payload} {peers}{rounds}")
}

fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::LoadsBatch => "loads the batch",
        Effect::AssignsBatch => "assigns the batch",
        Effect::ReadsBatch => "the batch",
        Effect::ReadsBatches => "buffers of other batches",
        Effect::Random => "random numbers",
        Effect::ReadsTable => "a table",
        Effect::WritesTable => "updates a table",
        Effect::ReadsParameter => "parameters",
        Effect::WritesParameter => "updates parameters",
        Effect::ReadsGradient => "gradients of parameters",
        Effect::WritesGradient => "writes gradients of parameters",
        Effect::ReadsUses => "last uses of replicated rows",
        Effect::WritesUses => "writes last uses of replicated rows",
        Effect::AddsLoss => "adds to the loss",
        Effect::Ranks => "adds to the evaluation",
    }
}

fn results(f: &Facts<'_>) -> String {
    if f.results.in_place {
        return "works in place".into();
    }
    let list: Vec<String> = f.results.adds.iter().map(ToString::to_string).collect();
    if list.is_empty() { String::new() } else { format!("result {}", list.join(", ")) }
}

fn learns(learns: Learns) -> String {
    let sizes = match learns.sizes {
        Sizes::None => return String::new(),
        Sizes::Sent => "`U`",
        Sizes::Received => "`R`",
        Sizes::Asked => "`A`",
        Sizes::Classes => "`U` or `R` of each class",
        Sizes::Assigned => "`B`, `T`, `Q` as assigned",
    };
    format!("{sizes}{}", if learns.host_sync { ", and so must the host" } else { "" })
}

fn flops(flops: Flops) -> String {
    let at = |at: At| match at {
        At::Read(n) => format!("operand {n}"),
        At::Written(n) => format!("result {n}"),
    };
    match flops {
        Flops::None => String::new(),
        Flops::Each(c, a) => format!("{c} per element of {}", at(a)),
        Flops::Product(c, a, b) => format!("{c} per element of {} and column of {}", at(a), at(b)),
        Flops::Pairs(c) => format!("{c} per pair of positions and column"),
        Flops::Crossed => "2 per pair of operands and column".into(),
    }
}

fn memory(memory: Memory) -> &'static str {
    match memory {
        Memory::Once => "once",
        Memory::Listed => "once, each microbatch its part",
        Memory::Picked => "what is picked",
        Memory::Placed => "what is brought",
        Memory::Repeated => "a row per result",
        Memory::UpdatedRows => "gradients once; rows, states twice",
        Memory::UpdatedParameters => "gradients once; parameters, states twice",
    }
}
