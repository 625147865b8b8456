//! What classes of alike tables can become: the ways that the algebra derives for them, with what they cost.

use std::collections::BTreeMap;

use super::alike::Alike;
use super::asked::{Change, anywhere};
use super::climb::Move;
use super::outcome::Way;
use super::places;
use super::travel::Kind;
use crate::algebra::derive::{self, Derived};
use crate::distribution::Choice;

/// What is derived.
#[derive(Default)]
pub(super) struct Graphs {
    /// By how a table is used, and is distributed wherever it lives.
    graphs: BTreeMap<String, Option<derive::Ways>>,
    /// By these and sizes.
    derived: BTreeMap<String, Derived>,
}

impl Graphs {
    fn derive(&mut self, class: &Alike) -> &Derived {
        let now = anywhere(&class.now);
        let key = format!("{:?} {now:?}", class.context);
        let ways = self.graphs.entry(key.clone());
        let ways = ways.or_insert_with(|| derive::Ways::of(&class.context, &now).ok());
        let at = || ways.as_ref().map(|ways| ways.at(&class.sizes)).unwrap_or_default();
        self.derived.entry(format!("{key} {:?}", class.sizes)).or_insert_with(at)
    }

    /// Whether rules might have found more of some class than limits let them.
    pub(super) fn cut(&self) -> bool {
        self.derived.values().any(|derived| !derived.saturated)
    }

    /// Nodes of the largest e-graph.
    pub(super) fn nodes(&self) -> usize {
        self.derived.values().map(|derived| derived.nodes).max().unwrap_or(0)
    }
}

/// How tables can be distributed.
#[derive(Debug)]
pub(super) struct Possible {
    pub choice: Choice,
    /// Bytes that a rank sends of all of them, and those to other nodes.
    pub wire: f64,
    pub far: f64,
    covered: bool,
}

/// Alike tables as they would be.
pub(super) fn placed<'c>((class, way): &'c (&Alike, Possible)) -> places::Kind<'c> {
    let (tables, open) = (&class.tables[..], class.context.moves);
    let (context, now, way, wire, far) = (&class.context, &class.now, &way.choice, way.wire, way.far);
    places::Kind { tables, open, context, now, way, wire, far }
}

/// Alike tables as they are.
pub(super) fn kind<'c>(class: &'c Alike, ways: &[(&Alike, Possible)]) -> Kind<'c> {
    let now = ways.iter().find(|(c, way)| c.tables == class.tables && way.choice == class.now);
    let (wire, far) = now.map_or((0.0, 0.0), |(_, way)| (way.wire, way.far));
    let rows = class.sizes.unique * f64::from(class.context.columns) * class.tables.len() as f64;
    Kind { tables: &class.tables, wire, far, rows }
}

/// Ways as changes of what there is.
pub(super) fn moves<'w>(ways: &'w [(&Alike, Possible)]) -> impl Iterator<Item = Move> + 'w {
    let others = ways.iter().filter(|(class, way)| way.choice != class.now);
    others.map(|(class, way)| {
        let before = ways.iter().find(|(c, w)| c.tables == class.tables && w.choice == class.now);
        let (from, to) = (class.now.clone(), way.choice.clone());
        Move {
            tables: class.tables.clone(),
            ways: (Way::Distributed(from.clone()), Way::Distributed(to.clone())),
            change: Change::Distribution { context: class.context.clone(), from, to },
            wire: (before.map_or(f64::NAN, |(_, before)| before.wire), way.wire),
            far: (before.map_or(f64::NAN, |(_, before)| before.far), way.far),
            covered: way.covered,
        }
    })
}

/// What all classes can become: first what nothing covers, by class.
pub(super) fn ways<'a>(classes: &'a [Alike], graphs: &mut Graphs) -> Vec<(&'a Alike, Possible)> {
    let mut ways = Vec::new();
    for class in classes {
        let derived = graphs.derive(class);
        ways.extend(derived.found.iter().map(|found| {
            let choice = derive::choice(found.commitment, &class.now);
            let all = class.tables.len() as f64;
            let (wire, far) = (found.cost.wire * all, found.cost.far * all);
            (class, Possible { choice, wire, far, covered: found.covered })
        }));
    }
    ways.sort_by_key(|(_, way)| way.covered);
    ways
}

#[cfg(test)]
mod tests {
    use fs_schedule::Strategy;

    use super::super::Candidate;
    use super::super::alike::alike;
    use super::*;
    use crate::sched::policy;
    use crate::{CompileOptions, compile_with};

    /// Tables of other sizes, wherever they live, are ways of one e-graph; of other uses, of another.
    #[test]
    fn tables_that_are_used_alike_have_one_graph() {
        let tables: Vec<(u32, &str, &str)> = (0..12)
            .map(|i| {
                let optimizer = if i < 8 { "sgd(lr: 0.1)" } else { "rowwise_adagrad(lr: 0.1)" };
                (
                    1000 + 97 * i,
                    optimizer,
                    if i % 4 == 0 { "sharding table_wise" } else { "sharding row_wise" },
                )
            })
            .collect();
        let declared = |(i, (rows, optimizer, sharding)): (usize, &(u32, &str, &str))| {
            format!(
                "table t{i} {{ rows {rows}  dim 64  optimizer {optimizer}  {sharding} }}
                 input x{i}: ids(t{i}) {{ max 5 }}"
            )
        };
        let declared: Vec<String> = tables.iter().enumerate().map(declared).collect();
        let sum: Vec<String> = (0..tables.len()).map(|i| format!("pool(x{i})")).collect();
        let text = format!(
            "model m {{ {} input y: label
             loss bce_with_logits(linear({}, 1), y, normalize: samples) }}
             train {{ batch 32  steps 2 }} workload w {{ generate {{ lengths fixed(3)  ids zipf(1.05) }} }}",
            declared.join("\n"),
            sum.join(" + ")
        );
        let program = fs_dsl::check_text("m.fs", &text).program.expect("it checks");
        let options = CompileOptions::new(Strategy::Pec, 4);
        let s = compile_with(&program, &options).expect("it compiles").schedule;
        let candidate = Candidate::new(policy::of(Strategy::Pec), None);
        let classes = alike(&program, &s, (&options, true), candidate);
        assert_eq!(classes.len(), tables.len());
        let mut graphs = Graphs::default();
        let found: Vec<Derived> = classes.iter().map(|class| graphs.derive(class).clone()).collect();
        for (class, found) in classes.iter().zip(&found) {
            let alone = derive::derive(&class.context, &class.now, &class.sizes).expect("ways");
            let told = |d: &Derived| format!("{:?} {}", d.found, d.nodes);
            assert_eq!(told(found), told(&alone), "{:?}", class.tables);
        }
        // Row-wise and table-wise.
        assert_eq!((graphs.graphs.len(), graphs.derived.len()), (2, tables.len()));
    }
}
