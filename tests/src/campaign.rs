//! Unaimed mutations of schedules: anything is changed, by its place in the file and not by its meaning.
//!
//! A mutation takes a random place of the schedule's JSON and changes what stands there: a number by a little, a text by
//! one of the same field elsewhere, a list by leaving out, repeating, or exchanging. Whole operations are removed,
//! repeated and moved, with dependencies that follow or do not. Most mutants say nonsense; the ones that count are those
//! that the verifier takes.

use fs_schedule::{Dep, Op, Schedule};
use serde_json::Value;

/// Random numbers that a seed fixes.
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }
    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
    /// True in one of `n` cases.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A mutant, by one to three changes; `None` if it is no schedule any more.
pub fn mutant(base: &Schedule, json: &Value, random: &mut Random) -> Option<Schedule> {
    let changes = [1, 1, 1, 2, 2, 3][random.below(6)];
    let mut s = base.clone();
    let mut value: Option<Value> = None;
    for _ in 0..changes {
        if random.once_in(3) {
            if let Some(v) = value.take() {
                s = serde_json::from_value(v).ok()?;
            }
            operation(&mut s, random);
        } else {
            let v = value.get_or_insert_with(|| {
                if s == *base { json.clone() } else { serde_json::to_value(&s).unwrap_or_default() }
            });
            field(v, random);
        }
    }
    if let Some(v) = value {
        s = serde_json::from_value(v).ok()?;
    }
    // Whoever writes a file can write its digests.
    if random.once_in(4) {
        if random.once_in(2) {
            s.seal();
        } else {
            s.reference.digest = s.reference_digest();
        }
    }
    Some(s)
}

/// Renumbers what refers to operations; what refers to a removed one refers to what took its place.
fn renumber(ops: &mut [Op], buffers: &mut [fs_schedule::Buffer], to: impl Fn(u32) -> u32) {
    for d in ops.iter_mut().flat_map(|op| &mut op.deps) {
        d.op = to(d.op);
    }
    for b in buffers {
        (b.first, b.last) = (to(b.first), to(b.last));
    }
}

/// Removes, repeats, moves or exchanges operations.
fn operation(s: &mut Schedule, random: &mut Random) {
    s.prediction = None;
    let p = match &mut s.evaluation {
        Some(e) if random.once_in(5) => e,
        _ => &mut s.train,
    };
    let n = p.ops.len();
    if n < 2 {
        return;
    }
    let at = random.below(n);
    let follows = !random.once_in(4);
    match random.below(6) {
        0 | 1 => {
            let gone = p.ops.remove(at);
            for op in &mut p.ops {
                let mut deps: Vec<Dep> = Vec::new();
                for d in &op.deps {
                    if d.op as usize != at {
                        deps.push(*d);
                    } else if follows {
                        let through = |g: &Dep| Dep { op: g.op, distance: g.distance + d.distance };
                        deps.extend(gone.deps.iter().filter(|g| g.op as usize != at).map(through));
                    }
                }
                deps.sort_unstable();
                deps.dedup();
                op.deps = deps;
            }
            renumber(&mut p.ops, &mut p.buffers, |i| i - u32::from(i as usize > at));
            let last = p.ops.len() as u32 - 1;
            p.buffers.iter_mut().for_each(|b| (b.first, b.last) = (b.first.min(last), b.last.min(last)));
        }
        2 | 3 => {
            let mut new = p.ops[at].clone();
            new.name += " again";
            renumber(&mut p.ops, &mut p.buffers, |i| i + u32::from(i as usize > at));
            new.deps.iter_mut().for_each(|d| d.op += u32::from(d.op as usize > at));
            if follows {
                new.deps.push(Dep { op: at as u32, distance: 0 });
            }
            p.ops.insert(at + 1, new);
        }
        4 => {
            let to = if random.once_in(2) { random.below(n) } else { (at + 1 + random.below(3)).min(n - 1) };
            let op = p.ops.remove(at);
            p.ops.insert(to, op);
            if follows {
                renumber(&mut p.ops, &mut p.buffers, |i| {
                    let i = i as usize;
                    let new = if i == at {
                        to
                    } else if at < i && i <= to {
                        i - 1
                    } else if to <= i && i < at {
                        i + 1
                    } else {
                        i
                    };
                    new as u32
                });
            }
            // Plans follow the list.
            p.ops.iter_mut().for_each(|op| op.start = 0);
        }
        _ => {
            let other = random.below(n);
            let (a, b) = (p.ops[at].clone(), p.ops[other].clone());
            match random.below(4) {
                0 => (p.ops[at].reads, p.ops[other].reads) = (b.reads, a.reads),
                1 => (p.ops[at].writes, p.ops[other].writes) = (b.writes, a.writes),
                2 => (p.ops[at].deps, p.ops[other].deps) = (b.deps, a.deps),
                _ => (p.ops[at].action, p.ops[other].action) = (b.action, a.action),
            }
        }
    }
}

/// Changes something in a file.
fn field(root: &mut Value, random: &mut Random) {
    let mut path: Vec<String> = Vec::new();
    let parts: &[(&str, usize)] = &[
        ("train", 60),
        ("evaluation", 10),
        ("reference", 8),
        ("exchanges", 5),
        ("tables", 4),
        ("settings", 2),
        ("inputs", 2),
        ("lengths", 1),
        ("parameters", 2),
        ("", 6),
    ];
    let mut left = random.below(parts.iter().map(|p| p.1).sum());
    for (name, weight) in parts {
        if left < *weight {
            if !name.is_empty() {
                path.push((*name).into());
            }
            break;
        }
        left -= weight;
    }
    // Down to something that is not a list or record, or stop on the way.
    loop {
        let here = path.iter().fold(&*root, |v, step| child(v, step));
        let steps: Vec<String> = match here {
            Value::Object(fields) => {
                // What is only read by people counts little.
                let dull = ["cost", "reason", "time", "start", "name", "prediction", "sources", "search"];
                let all = fields.keys().filter(|k| !dull.contains(&k.as_str()) || random.once_in(10));
                all.cloned().collect()
            }
            Value::Array(list) => (0..list.len()).map(|i| i.to_string()).collect(),
            _ => Vec::new(),
        };
        if steps.is_empty() || (path.len() > 2 && random.once_in(4)) {
            break;
        }
        // Operations are more than buffers and the number in flight.
        let step = if steps.iter().any(|s| s == "ops") && !random.once_in(4) {
            "ops".into()
        } else {
            steps[random.below(steps.len())].clone()
        };
        path.push(step);
    }
    let donor = elsewhere(root, &path, random);
    let here = path.iter().fold(root, |v, step| child_mut(v, step));
    change(here, donor, random);
}

fn child<'a>(v: &'a Value, step: &str) -> &'a Value {
    const NOTHING: &Value = &Value::Null;
    match v {
        Value::Object(fields) => fields.get(step).unwrap_or(NOTHING),
        Value::Array(list) => step.parse::<usize>().ok().and_then(|i| list.get(i)).unwrap_or(NOTHING),
        _ => NOTHING,
    }
}

fn child_mut<'a>(v: &'a mut Value, step: &str) -> &'a mut Value {
    match v {
        Value::Object(fields) => fields.entry(step).or_insert(Value::Null),
        Value::Array(list) => {
            let at = step.parse::<usize>().unwrap_or(0);
            &mut list[at]
        }
        other => other,
    }
}

/// What stands at the same field of another element.
fn elsewhere(root: &Value, path: &[String], random: &mut Random) -> Option<Value> {
    let mut v = root;
    for step in path {
        v = match v {
            Value::Array(list) if !list.is_empty() => {
                // Mostly near: neighbours are alike.
                let at = step.parse::<usize>().unwrap_or(0);
                let near = (at + random.below(7)).saturating_sub(3).min(list.len() - 1);
                &list[if random.once_in(2) { near } else { random.below(list.len()) }]
            }
            other => child(other, step),
        };
    }
    (!v.is_null()).then(|| v.clone())
}

fn change(here: &mut Value, donor: Option<Value>, random: &mut Random) {
    if let Some(donor) = donor.filter(|d| d != here)
        && !random.once_in(3)
    {
        *here = donor;
        return;
    }
    match here {
        Value::Null => *here = Value::from(random.below(4)),
        Value::Bool(b) => *b = !*b,
        Value::Number(n) => {
            *here = match n.as_i64() {
                Some(i) => Value::from(match random.below(6) {
                    0 => 0,
                    1 => i.saturating_sub(1),
                    2 => i.saturating_mul(2),
                    3 => random.below(10) as i64,
                    _ => i.saturating_add(1),
                }),
                None => Value::from(n.as_f64().unwrap_or(0.0) * [0.0, 0.5, 2.0, -1.0][random.below(4)]),
            };
            if random.once_in(20) {
                *here = Value::Null;
            }
        }
        Value::String(text) => *text = operand(text, random),
        Value::Array(list) if list.is_empty() => {}
        Value::Array(list) => {
            let (i, j) = (random.below(list.len()), random.below(list.len()));
            match random.below(5) {
                0 | 1 => {
                    list.remove(i);
                }
                2 => list.insert(j, list[i].clone()),
                _ => list.swap(i, j),
            }
        }
        Value::Object(fields) => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            if let Some(key) = keys.get(random.below(keys.len().max(1))) {
                fields.remove(key);
            }
        }
    }
}

/// An operand, size or term that says something else.
fn operand(text: &str, random: &mut Random) -> String {
    match random.below(6) {
        0 if text.ends_with('+') => text.trim_end_matches('+').into(),
        0 => format!("{text}+"),
        1 => format!("{text}@{}", ["-1", "+1", "-2"][random.below(3)]),
        2 => text.split('[').next().unwrap_or_default().into(),
        3 => format!(
            "{}[{}:{}]",
            text.split('[').next().unwrap_or_default(),
            random.below(5),
            4 + random.below(9)
        ),
        _ => {
            // One of its numbers.
            let digits: Vec<usize> =
                text.char_indices().filter(|(_, c)| c.is_ascii_digit()).map(|(i, _)| i).collect();
            let Some(at) = digits.get(random.below(digits.len().max(1))) else { return text.into() };
            let end = text[*at..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |n| at + n);
            let n: u64 = text[*at..end].parse().unwrap_or(0);
            let new = match random.below(3) {
                0 => n + 1,
                1 => n.saturating_sub(1),
                _ => random.below(40) as u64,
            };
            format!("{}{new}{}", &text[..*at], &text[end..])
        }
    }
}

/// Without what only people read, and what the plan expects.
pub fn core(s: &Schedule) -> Schedule {
    let mut s = s.clone();
    (s.digest, s.model, s.prediction) = (String::new(), String::new(), None);
    (s.sources, s.search) = (Vec::new(), None);
    s.strategy = fs_schedule::Strategy::Serial;
    for p in std::iter::once(&mut s.train).chain(&mut s.evaluation) {
        for (n, op) in p.ops.iter_mut().enumerate() {
            (op.name, op.reason, op.start, op.time) = (n.to_string(), String::new(), 0, 0);
            op.cost = fs_schedule::Cost::default();
        }
        p.buffers.iter_mut().for_each(|b| b.name = String::new());
    }
    s
}
