//! How a schedule was found among others, in words: what was compared, what each change of a table bought, what came closest.

use std::fmt::Write as _;

use fs_schedule::search::{Derivation, DerivationStep, OtherWay, Rewrite, TriedStrategy, by};
use fs_schedule::{Search, Sent};

use super::limits::human;

/// The first of some tables, and how many more there are; of none, what is no table's.
fn some(tables: &[String]) -> String {
    let first = tables.first().map_or("dense gradients", String::as_str);
    match tables.len() {
        0 | 1 => first.into(),
        n => format!("{first} and {} more", n - 1),
    }
}

/// As paragraphs of `fsc explain`, of a schedule whose ranks send so much in a step.
pub(super) fn text(search: &Search, in_all: Option<Sent>) -> String {
    let mut t = String::from("\nsearch:\n");
    for TriedStrategy { name, step, at_least } in &search.strategies {
        let _ = match (step, at_least) {
            (Some(step), _) => writeln!(t, "  {name}: {:.3} ms a step", step * 1e3),
            (None, Some(least)) => writeln!(t, "  {name}: at least {:.3} ms, not scheduled", least * 1e3),
            (None, None) => writeln!(t, "  {name}: not scheduled"),
        };
    }
    for Rewrite {
        tables,
        from,
        to,
        rules,
        step: [before, after],
        bytes,
        between_nodes,
        without,
        without_sent,
    } in &search.rewrites
    {
        let _ = writeln!(t, "  {}: {to} instead of {from}, by {}", some(tables), by(rules));
        let _ = write!(t, "    {:.3} ms a step instead of {:.3}", after * 1e3, before * 1e3);
        let said = |bytes: [f64; 2]| bytes.map(|bytes| human(bytes.max(0.0) as u64));
        let [sent, now] = said(*bytes);
        let _ = write!(t, ", {now} sent a rank and step instead of {sent}");
        if let Some([sent, now]) = between_nodes.map(said) {
            let _ = write!(t, ", of these {now} between nodes instead of {sent}");
        }
        let worth = if after > before { "; worth it with what follows" } else { "" };
        let _ = writeln!(t, "{worth}");
        let Some(without) = without else {
            // What a later change is of need not be there.
            if search.rewrites.len() > 1 {
                let _ = writeln!(t, "    all but this cannot be scheduled");
            }
            continue;
        };
        let _ = write!(t, "    {:.3} ms with all but this", without * 1e3);
        if let Some((then, now)) = without_sent.zip(in_all) {
            let [then, now] = [then, now].map(|sent| human(sent.bytes as u64));
            let _ = write!(t, ", {then} sent of all tables and parameters instead of {now}");
        }
        let _ = writeln!(t);
    }
    for OtherWay { tables, to, step } in &search.others {
        let _ = writeln!(t, "  not taken: {}: {to}: {:.3} ms", some(tables), step * 1e3);
    }
    // A strategy that was asked for is compared in several numbers of microbatches only.
    if search.kinds == 0 {
        return t;
    }
    let Search { kinds, nodes, ways, scheduled, limited, .. } = search;
    let more = if *limited { "; there was more to try" } else { "" };
    let _ = writeln!(
        t,
        "  {kinds} kind(s) of tables, e-graphs of up to {nodes} nodes, {ways} other ways tried, {scheduled} scheduled{more}"
    );
    search.derivations.iter().for_each(|derivation| derived(derivation, &mut t));
    t
}

/// How the terms of the serial schedule became these.
fn derived(derivation: &Derivation, t: &mut String) {
    let Derivation { tables, from, to, steps } = derivation;
    let _ = writeln!(t, "\nhow {} became {to}:", some(tables));
    let _ = writeln!(t, "  serially {from}");
    if steps.is_empty() {
        let _ = writeln!(t, "  the same terms with other owners");
    }
    for DerivationStep { rule, backward, places, from, to, letters } in steps {
        let read = if *backward { ", from right to left" } else { "" };
        let times = if *places == 1 { String::new() } else { format!(", in {places} places") };
        let _ = writeln!(t, "  by {rule}{read}{times}\n      {from}\n    = {to}");
        if !letters.is_empty() {
            let letters: Vec<String> =
                letters.iter().map(|(name, text)| format!("{name} = {text}")).collect();
            let _ = writeln!(t, "      where {}", letters.join(", "));
        }
    }
}
