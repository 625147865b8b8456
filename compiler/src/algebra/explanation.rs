//! How one way to distribute a table became another: what e-graphs keep of why two terms are equal, one rule after the other.
//!
//! A rule changes one place of the terms. What it makes of that place is told as symbolic expressions, with capitals for what stays as
//! it is and small letters for what is there several times.

use std::collections::{BTreeMap, BTreeSet};

use egg::{FlatTerm, RecExpr};
use fs_schedule::search::DerivationStep as Step;

use super::convert::{ConvertError, to_nodes};
use super::derive::{saturate, table};
use super::lang::Node;
use super::rules::{Context, RULES};
use crate::distribution::{Choice, Terms};

/// How a table that is distributed in one way becomes the other, in order: no steps if the terms are the same, `None` if rules do not
/// lead there. What is done alike in several places is one step.
///
/// # Errors
/// None that choices have.
pub fn explain(context: &Context, from: &Choice, to: &Choice) -> Result<Option<Vec<Step>>, ConvertError> {
    let mut terms = Terms::default();
    let (from, to) = (table(&mut terms, context, from)?, table(&mut terms, context, to)?);
    let (from, to) = (to_nodes(&terms, &from)?, to_nodes(&terms, &to)?);
    Ok(steps(context, &from, &to))
}

fn steps(context: &Context, from: &RecExpr<Node>, to: &RecExpr<Node>) -> Option<Vec<Step>> {
    let mut runner = saturate(from, context, true);
    let found = runner.egraph.lookup_expr(to);
    if found.is_none() || found != runner.egraph.lookup_expr(from) {
        return None;
    }
    let mut explanation = runner.egraph.explain_equivalence(from, to);
    let terms = explanation.make_flat_explanation();
    let mut steps: Vec<Step> = Vec::new();
    for step in terms.windows(2).filter_map(|pair| step(&pair[0], &pair[1])) {
        match steps.iter_mut().find(|known| Step { places: 1, ..(*known).clone() } == step) {
            Some(known) => known.places += 1,
            None => steps.push(step),
        }
    }
    Some(steps)
}

/// The rules of an explanation, in order, without repetitions.
pub fn rules(steps: &[Step]) -> Vec<&'static str> {
    let mut rules: Vec<&'static str> = Vec::new();
    for step in steps {
        let known = RULES.iter().map(|rule| rule.name).find(|known| *known == step.rule);
        rules.extend(known.filter(|known| !rules.contains(known)));
    }
    rules
}

/// What changed from one term to the next.
fn step(before: &FlatTerm<Node>, after: &FlatTerm<Node>) -> Option<Step> {
    let (rule, backward) = match (after.forward_rule, after.backward_rule) {
        (Some(rule), _) => (rule, false),
        (None, Some(rule)) => (rule, true),
        (None, None) => {
            let mut children = before.children.iter().zip(&after.children);
            return children.find_map(|(before, after)| step(before, after));
        }
    };
    let rule = rule.as_str().split(['.', '~']).next().unwrap_or_default().to_owned();
    let mut pair = Pair::default();
    let (from, to) = (pair.add(before), pair.add(after));
    let (from, to, letters) = pair.told(from, to);
    Some(Step { rule, backward, places: 1, from, to, letters })
}

/// Two terms, of which each part is there once.
#[derive(Default)]
struct Pair {
    nodes: Vec<(String, Vec<usize>)>,
    known: BTreeMap<(String, Vec<usize>), usize>,
}

impl Pair {
    fn add(&mut self, term: &FlatTerm<Node>) -> usize {
        let children = term.children.iter().map(|child| self.add(child)).collect();
        let node = (term.node.to_string(), children);
        *self.known.entry(node.clone()).or_insert_with(|| {
            self.nodes.push(node);
            self.nodes.len() - 1
        })
    }

    fn operands(&self, of: usize) -> &[usize] {
        &self.nodes[of].1
    }

    /// A to Z, then A1 and so on, but for what is a number of rows in these terms.
    fn letter(&self, first: u8, nth: usize) -> String {
        let letters = (0usize..).map(|n| {
            let letter = char::from(first + (n % 26) as u8);
            if n < 26 { letter.to_string() } else { format!("{letter}{}", n / 26) }
        });
        let mut free = letters.filter(|letter| self.nodes.iter().all(|(name, _)| name != letter));
        free.nth(nth).unwrap_or_default()
    }

    /// A term and all within it.
    fn within(&self, of: usize, into: &mut BTreeSet<usize>) {
        if into.insert(of) {
            self.operands(of).iter().for_each(|operand| self.within(*operand, into));
        }
    }

    /// Both as text, and what small letters in it stand for.
    fn told(&self, from: usize, to: usize) -> (String, String, Vec<(String, String)>) {
        let inner = [from, to].map(|of| {
            let mut inner = BTreeSet::new();
            self.operands(of).iter().for_each(|operand| self.within(*operand, &mut inner));
            inner
        });
        let [of_from, of_to] = inner;
        let same = of_from.intersection(&of_to).copied().filter(|n| !self.operands(*n).is_empty());
        let mut told = Told {
            pair: self,
            same: same.collect(),
            times: BTreeMap::new(),
            names: [(); 2].map(|()| Vec::new()),
        };
        told.count(from);
        told.count(to);
        let texts = [from, to].map(|of| told.node(of));
        let mut letters = Vec::new();
        while let Some(of) = told.names[1].get(letters.len()).copied() {
            let text = told.node(of);
            letters.push((self.letter(b'a', letters.len()), text));
        }
        let [from, to] = texts;
        (from, to, letters)
    }
}

/// What is written of two terms.
struct Told<'a> {
    pair: &'a Pair,
    /// What is in both.
    same: BTreeSet<usize>,
    /// How often each would be written.
    times: BTreeMap<usize, usize>,
    /// What has got a capital, and a small letter.
    names: [Vec<usize>; 2],
}

impl Told<'_> {
    fn count(&mut self, of: usize) {
        let times = self.times.entry(of).or_default();
        *times += 1;
        if *times == 1 && !self.same.contains(&of) {
            self.pair.operands(of).iter().for_each(|operand| self.count(*operand));
        }
    }

    fn node(&mut self, of: usize) -> String {
        let pair = self.pair;
        let (name, operands) = &pair.nodes[of];
        if operands.is_empty() {
            return name.clone();
        }
        let operands: Vec<String> = operands.iter().map(|operand| self.operand(*operand)).collect();
        format!("({name} {})", operands.join(" "))
    }

    fn operand(&mut self, of: usize) -> String {
        let pair = self.pair;
        let (names, first) = if self.same.contains(&of) {
            (&mut self.names[0], b'A')
        } else if self.times.get(&of).is_some_and(|times| *times > 1) && !pair.operands(of).is_empty() {
            (&mut self.names[1], b'a')
        } else {
            return self.node(of);
        };
        let nth = names.iter().position(|known| *known == of).unwrap_or_else(|| {
            names.push(of);
            names.len() - 1
        });
        pair.letter(first, nth)
    }
}

#[cfg(test)]
mod tests {
    use fs_schedule::{Element, Sharding};

    use super::*;
    use crate::algebra::rules::Use;

    fn contexts() -> Vec<Context> {
        let plain = Context {
            columns: 64,
            exchange: 0,
            uses: vec![Use::Each, Use::Mean],
            microbatches: 2,
            lookaheads: vec![1],
            windows: vec![2, 1],
            cuts: vec![(0, 32), (32, 64)],
            rows: Element::Real,
            repeats: true,
            moves: true,
            relays: true,
            moved: false,
            folds: None,
            replicates: true,
        };
        vec![Context { moved: true, relays: false, ..plain.clone() }, plain]
    }

    fn choices(context: &Context) -> Vec<Choice> {
        let row_wise = Choice {
            unique: true,
            lookahead: None,
            windows: None,
            sharding: Sharding::RowWise,
            relayed: false,
            folded: false,
        };
        let of = |change: fn(&mut Choice)| {
            let mut choice = row_wise.clone();
            change(&mut choice);
            choice
        };
        let relayed = of(|c| (c.relayed, c.lookahead, c.windows) = (true, Some(1), Some(1)));
        let folded = of(|c| (c.folded, c.lookahead) = (true, Some(1)));
        vec![
            row_wise.clone(),
            of(|c| c.unique = false),
            of(|c| c.lookahead = Some(1)),
            of(|c| (c.lookahead, c.windows) = (Some(1), Some(1))),
            of(|c| c.sharding = Sharding::DataParallel),
            of(|c| (c.lookahead, c.sharding) = (Some(1), Sharding::ColumnWise { ranks: vec![0, 1] })),
            if context.moved { folded } else { relayed },
        ]
    }

    /// An expression's name and operands.
    struct Read(String, Vec<Read>);

    fn read(text: &str) -> Read {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let mut open: Vec<Vec<Read>> = vec![Vec::new()];
        for word in spaced.split_whitespace() {
            match word {
                "(" => open.push(Vec::new()),
                ")" => {
                    let mut all = open.pop().expect("an end of what began");
                    let Read(name, _) = all.remove(0);
                    open.last_mut().expect("within something").push(Read(name, all));
                }
                name => open.last_mut().expect("within something").push(Read(name.into(), Vec::new())),
            }
        }
        open.remove(0).remove(0)
    }

    /// A term without what became of it.
    fn whole(term: &FlatTerm<Node>) -> String {
        let operands: Vec<String> = term.children.iter().map(whole).collect();
        let name = &term.node;
        if operands.is_empty() { name.to_string() } else { format!("({name} {})", operands.join(" ")) }
    }

    /// Whether text says what a term is; each capital always means the same.
    fn says(
        text: &Read,
        term: &FlatTerm<Node>,
        letters: &[(String, String)],
        means: &mut BTreeMap<String, String>,
    ) -> bool {
        let Read(name, operands) = text;
        if let Some((_, text)) = letters.iter().find(|(letter, _)| letter == name) {
            return says(&read(text), term, letters, means);
        }
        // What has no operands has no letter.
        if name.starts_with(|c: char| c.is_ascii_uppercase()) && !term.children.is_empty() {
            let known = means.entry(name.clone()).or_insert_with(|| whole(term));
            return *known == whole(term);
        }
        *name == term.node.to_string()
            && operands.len() == term.children.len()
            && operands.iter().zip(&term.children).all(|(text, term)| says(text, term, letters, means))
    }

    /// All names in a term.
    fn names(term: &FlatTerm<Node>, into: &mut BTreeSet<String>) {
        into.insert(term.node.to_string());
        term.children.iter().for_each(|child| names(child, into));
    }

    fn changed<'a>(
        before: &'a FlatTerm<Node>,
        after: &'a FlatTerm<Node>,
    ) -> Option<(&'a FlatTerm<Node>, &'a FlatTerm<Node>)> {
        if after.forward_rule.is_some() || after.backward_rule.is_some() {
            return Some((before, after));
        }
        before.children.iter().zip(&after.children).find_map(|(before, after)| changed(before, after))
    }

    /// Between ways there are steps of known rules. Each says what the place was and what it becomes, no capital means two
    /// things, and beside that place nothing changes.
    #[test]
    fn steps_say_what_happened() {
        let mut told = 0;
        for context in contexts() {
            let all = choices(&context);
            let next = all.iter().zip(all.iter().cycle().skip(1));
            let others = all.iter().map(|to| (&all[0], to));
            for (from, to) in next.chain(others) {
                let steps = explain(&context, from, to).expect("terms");
                let steps = steps.unwrap_or_else(|| panic!("{from:?} is not {to:?}"));
                assert_eq!(steps.is_empty(), from == to, "{from:?} {to:?}");
                assert!(
                    steps.iter().all(|step| RULES.iter().any(|rule| rule.name == step.rule)),
                    "{steps:?}"
                );
                let mut terms = Terms::default();
                let ends = [from, to].map(|way| {
                    let way = table(&mut terms, &context, way).expect("terms");
                    to_nodes(&terms, &way).expect("nodes")
                });
                let mut runner = saturate(&ends[0], &context, true);
                runner.egraph.lookup_expr(&ends[1]).expect("it is there");
                let mut explanation = runner.egraph.explain_equivalence(&ends[0], &ends[1]);
                let flat = explanation.make_flat_explanation();
                let both = [flat.first(), flat.last()].map(|term| term.map(whole));
                assert_eq!(both, ends.map(|end| Some(end.to_string())));
                for pair in flat.windows(2) {
                    let step = step(&pair[0], &pair[1]).expect("a step");
                    let (before, after) = changed(&pair[0], &pair[1]).expect("a place");
                    let mut means = BTreeMap::new();
                    assert!(says(&read(&step.from), before, &step.letters, &mut means), "{step:?}\n{before}");
                    assert!(says(&read(&step.to), after, &step.letters, &mut means), "{step:?}\n{after}");
                    let mut leaves = BTreeSet::new();
                    names(before, &mut leaves);
                    names(after, &mut leaves);
                    let letters = means.keys().chain(step.letters.iter().map(|(letter, _)| letter));
                    assert!(letters.clone().all(|letter| !leaves.contains(letter)), "{step:?}\n{leaves:?}");
                    let longest = step.from.len().max(step.to.len());
                    assert!(longest < 400, "{longest} characters: {step:?}");
                    told += 1;
                }
                let places: u32 = steps.iter().map(|step| step.places).sum();
                assert_eq!(places as usize, flat.len() - 1, "{steps:?}");
            }
        }
        assert!(told > 50, "{told}");
    }
}
