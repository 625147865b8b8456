//! What there is of random data: how many each symbol of a size stands for on each rank, counted in ids alone.

use std::collections::BTreeMap;

use fs_compiler::algebra::size::{Class, List, Symbol};
use fs_compiler::distribution::reference::{Part, Values, World};
use fs_schedule::{Site, Way};

use super::Sizes;

/// A row that somebody uses: the first and the last microbatch, and how often.
type Uses = BTreeMap<u64, (u32, u32, usize)>;

fn add(uses: &mut Uses, row: u64, microbatch: u32) {
    let (first, last, times) = uses.entry(row).or_insert((microbatch, microbatch, 0));
    (*first, *last, *times) = ((*first).min(microbatch), (*last).max(microbatch), *times + 1);
}

/// Ids of a world, as they are used.
pub(crate) struct Counted<'a> {
    pub(crate) world: &'a World,
    pub(crate) sizes: Sizes,
}

impl Counted<'_> {
    /// Rows of one value on one rank.
    pub(crate) fn rows(part: &Part) -> usize {
        match &part.values {
            Values::Reals(of) => of.len(),
            Values::Ids(of) => of.len(),
            Values::Requests(of) => of.len(),
            Values::Positions(of) => of.len(),
            Values::Classes(of) => of.len(),
            Values::Offsets(of) => of.len() - 1,
            Values::Sums(of) => of.len(),
        }
    }

    /// Ids of a sequence that a rank has, where samples are read or where they are worked on.
    fn ids(&self, source: u32, batch: i32, rank: usize, site: Site) -> Vec<u64> {
        let all = &self.world.ids[&(source, batch)];
        if site == Site::Home {
            return all[rank].concat();
        }
        let mut own = Vec::new();
        for (home, samples) in self.world.assigned[&batch].iter().enumerate() {
            let offsets = &self.world.offsets[&(source, batch)][home];
            for (sample, _) in samples.iter().enumerate().filter(|(_, to)| **to == rank) {
                own.extend(all[home][offsets[sample]..offsets[sample + 1]].concat());
            }
        }
        own
    }

    /// Rows that some ranks use.
    fn uses(&self, batch: i32, ranks: impl Iterator<Item = usize>) -> Uses {
        let site = if self.sizes.moved { Site::Assigned } else { Site::Home };
        let mut uses = Uses::new();
        for rank in ranks {
            for source in 0..self.sizes.microbatches * self.sizes.sequences {
                for row in self.ids(source, batch, rank, site) {
                    add(&mut uses, row, source / self.sizes.sequences);
                }
            }
        }
        uses
    }

    /// Rows that the node of a rank uses.
    fn of_node(&self, rank: usize) -> Uses {
        let nodes = self.world.nodes;
        self.uses(0, (0..self.world.ranks).filter(|other| other % nodes == rank % nodes))
    }

    /// A list of a rank, or of a relay.
    fn list(&self, list: List, rank: usize) -> Vec<u64> {
        // Of those that a node uses, a relay asks for what is owned where it stands in its node.
        let place = |rank: usize| rank / self.world.nodes;
        let asks = |row: &u64| place((*row % self.world.ranks as u64) as usize) == place(rank);
        match list {
            List::Relayed => self.of_node(rank).into_keys().filter(asks).collect(),
            List::Unique => self.uses(0, [rank].into_iter()).into_keys().collect(),
            List::Occurrences => {
                let each = |(row, (_, _, times))| std::iter::repeat_n(row, times);
                self.uses(0, [rank].into_iter()).into_iter().flat_map(each).collect()
            }
        }
    }

    /// The class of a row that a rank asks for, or its node.
    fn class(&self, list: List, rank: usize, of: Class, row: u64) -> Option<u32> {
        let Class { reuse, way, passed, .. } = of;
        let everyone = |batch| self.uses(batch, 0..self.world.ranks).get(&row).copied();
        let w = reuse.windows;
        // The batch next to this one that uses it.
        let near = (1..=reuse.history()).find_map(|n| {
            let batch = if way == Way::Forward { -(n as i32) } else { n as i32 };
            everyone(batch).map(|(first, last, _)| (n * w, reuse.window(first), reuse.window(last)))
        });
        if way == Way::Backward {
            let window = reuse.window(everyone(0)?.1);
            return reuse.class(way, window, near.map(|(batches, first, _)| batches + first - window));
        }
        let who = if passed || list == List::Relayed {
            self.of_node(rank)
        } else {
            self.uses(0, [rank].into_iter())
        };
        let window = reuse.window(who.get(&row)?.0);
        reuse.class(way, window, near.map(|(batches, _, last)| batches + window - last))
    }

    /// How many there are on a rank of what a symbol stands for, for a value of samples at a site.
    pub(crate) fn of(&self, symbol: Symbol, rank: usize, site: Site) -> f64 {
        let plan = &self.world.assigned[&0];
        let count = match symbol {
            Symbol::Ranks => self.world.ranks,
            Symbol::Samples if site == Site::Home => plan[rank].len(),
            Symbol::Samples => plan.iter().flatten().filter(|to| **to == rank).count(),
            Symbol::Ids(source) => self.ids(source, 0, rank, site).len(),
            Symbol::Rows(list) => self.list(list, rank).len(),
            Symbol::Class(list, class) => {
                let rows = self.list(list, rank).into_iter();
                rows.filter(|row| self.class(list, rank, class, *row) == Some(class.class)).count()
            }
            Symbol::Asked { .. } => panic!("no value has as many"),
        };
        count as f64
    }
}
