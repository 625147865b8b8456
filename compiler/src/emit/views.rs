//! Which values stand in the storage of which others, and who uses what stands in one storage.

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{self, Module, OpId, ValueId};

/// Values that are column ranges of others. Chains of views are shortened whenever one is walked.
#[derive(Debug, Default)]
pub(super) struct Views(BTreeMap<ValueId, (ValueId, u32)>);

impl Views {
    /// Lets a value be columns of another one, from `start` on.
    pub(super) fn add(&mut self, v: ValueId, of: ValueId, start: u32) {
        self.0.insert(v, (of, start));
    }

    /// Whether a value has no storage of its own.
    pub(super) fn has(&self, v: ValueId) -> bool {
        self.0.contains_key(&v)
    }

    /// The value whose storage holds this one, and where in it.
    pub(super) fn find(&self, mut v: ValueId) -> (ValueId, u32) {
        let mut start = 0;
        while let Some((of, at)) = self.0.get(&v) {
            start += at;
            v = *of;
        }
        (v, start)
    }

    /// The same; all on the way then lead there at once.
    pub(super) fn root(&mut self, v: ValueId) -> (ValueId, u32) {
        let (root, mut left) = self.find(v);
        let (all, mut at) = (left, v);
        while at != root {
            let Some(view) = self.0.get_mut(&at) else { break };
            let (next, own) = *view;
            *view = (root, left);
            left -= own;
            at = next;
        }
        (root, all)
    }
}

/// Operations that write and read each storage, by the value that it belongs to. Of two that become one the smaller is
/// added to the greater, so an operation moves as often as sizes can double.
#[derive(Debug, Default)]
pub(super) struct Users {
    sets: Vec<Set>,
    of: BTreeMap<ValueId, usize>,
}

#[derive(Debug, Default)]
struct Set {
    writes: BTreeSet<OpId>,
    reads: BTreeSet<OpId>,
    /// Some operation does both.
    both: bool,
}

impl Set {
    fn len(&self) -> usize {
        self.writes.len() + self.reads.len()
    }
    fn write(&mut self, id: OpId) {
        self.both |= self.reads.contains(&id);
        self.writes.insert(id);
    }
    fn read(&mut self, id: OpId) {
        self.both |= self.writes.contains(&id);
        self.reads.insert(id);
    }
}

impl Users {
    /// Of a function's operations. Views use nothing themselves; a concat writes its storage once a part is copied
    /// there.
    pub(super) fn new(module: &Module, body: &[OpId], views: &mut Views) -> Self {
        let mut users = Self::default();
        for id in body {
            let op = module.op(*id);
            if op.def.view == Some(ir::View::Split) {
                continue;
            }
            for r in &op.results {
                let root = views.root(*r).0;
                users.set(root).write(*id);
            }
            if op.def.view.is_none() {
                for v in &op.operands {
                    let root = views.root(*v).0;
                    users.set(root).read(*id);
                }
            }
        }
        users
    }

    fn number(&mut self, root: ValueId) -> usize {
        let next = self.sets.len();
        let number = *self.of.entry(root).or_insert(next);
        if number == next {
            self.sets.push(Set::default());
        }
        number
    }

    fn set(&mut self, root: ValueId) -> &mut Set {
        let number = self.number(root);
        &mut self.sets[number]
    }

    /// A concat copies a part from one storage to another.
    pub(super) fn copied(&mut self, concat: OpId, from: ValueId, to: ValueId) {
        self.set(to).write(concat);
        self.set(from).read(concat);
    }

    /// Whether two storages may be one: nobody would read and write it.
    pub(super) fn may_share(&mut self, a: ValueId, b: ValueId) -> bool {
        let (a, b) = (self.number(a), self.number(b));
        let (a, b) = (&self.sets[a], &self.sets[b]);
        let (few, many) = if a.len() < b.len() { (a, b) } else { (b, a) };
        let crossed = few.writes.iter().any(|id| many.reads.contains(id))
            || few.reads.iter().any(|id| many.writes.contains(id));
        !(a.both || b.both || crossed)
    }

    /// `part` has become part of `host`.
    pub(super) fn share(&mut self, part: ValueId, host: ValueId) {
        let (part, host) = (self.number(part), self.number(host));
        let mut few = std::mem::take(&mut self.sets[part]);
        if few.len() > self.sets[host].len() {
            std::mem::swap(&mut few, &mut self.sets[host]);
        }
        let many = &mut self.sets[host];
        many.both |= few.both;
        few.writes.into_iter().for_each(|id| many.write(id));
        few.reads.into_iter().for_each(|id| many.read(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_views() {
        let v = ValueId;
        let mut views = Views::default();
        views.add(v(1), v(0), 2);
        views.add(v(2), v(1), 3);
        views.add(v(3), v(2), 4);
        for _ in 0..2 {
            assert_eq!(
                (views.root(v(3)), views.root(v(2)), views.find(v(1))),
                ((v(0), 9), (v(0), 5), (v(0), 2))
            );
        }
        // What held the others moves into something else.
        views.add(v(0), v(9), 100);
        assert_eq!(
            (views.root(v(3)), views.find(v(2)), views.find(v(0))),
            ((v(9), 109), (v(9), 105), (v(9), 100))
        );
    }

    #[test]
    fn nobody_reads_what_it_writes() {
        let (v, id) = (ValueId, OpId);
        let mut users = Users::default();
        users.set(v(0)).write(id(0));
        users.set(v(0)).read(id(1));
        users.set(v(1)).write(id(1));
        users.set(v(2)).write(id(2));
        assert!(!users.may_share(v(0), v(1)) && users.may_share(v(1), v(2)));
        users.share(v(1), v(2));
        assert!(!users.may_share(v(2), v(0)), "what stands in it counts");
        users.copied(id(3), v(0), v(0));
        assert!(!users.may_share(v(0), v(5)), "it already reads what it writes");
    }
}
