//! The last pass over every plan: no sample is away from home in vain.
//!
//! First ranks' lists are exchanged as wholes wherever that leaves more bytes at home, which costs no rank anything: all
//! can hold the same. Then single samples go home, and pairs of samples change places so that one of the two does, as long
//! as the greatest cost allowed is not exceeded and limits and numbers of samples are kept. Both are repeated until neither
//! finds anything, so when this ends there is no such move and no such exchange. Each takes bytes off, or samples of no
//! bytes, so there is an end.

use super::plan::Sample;
use super::planner::{Planner, Problem, dearest_first, most};

/// An exchange for a sample that is to go home: bytes that are then away in addition and samples, and who goes in its place.
type Change = (i64, i64, Option<usize>);

impl Planner {
    /// Takes back what was moved in vain, with no rank above the cost `cap`.
    pub(super) fn settle(&mut self, p: &Problem<'_>, cap: u64) {
        loop {
            self.name_after_home(p);
            if !self.bring_home(p, cap) {
                break;
            }
        }
    }

    /// Gives the lists of a plan to ranks so that as much as possible of each is read where it is worked on, if that is
    /// more than now. With equal counts only ranks that read as many samples exchange lists.
    fn name_after_home(&mut self, p: &Problem<'_>) {
        // Where each list has most of its bytes where it is, there is no better way.
        let settled = self.held.iter().all(|held| held.iter().map(|s| s.away).sum::<i64>() >= 0);
        if settled {
            return;
        }
        let names = &mut self.names;
        names.clear();
        for held in &self.held {
            let homes = held.iter().map(|s| (p.home[s.index as usize], p.bytes[s.index as usize]));
            names.list(if p.equal_counts { held.len() } else { 0 }, homes);
        }
        if !names.find() {
            return;
        }
        self.spare.resize_with(p.ranks, Vec::new);
        for (list, held) in self.held.iter_mut().enumerate() {
            std::mem::swap(held, &mut self.spare[self.names.of(list)]);
        }
        std::mem::swap(&mut self.held, &mut self.spare);
        for (rank, held) in self.held.iter_mut().enumerate() {
            for s in held {
                let bytes = p.bytes[s.index as usize] as i64;
                s.away = if p.home[s.index as usize] as usize == rank { bytes } else { -bytes };
            }
        }
        self.weigh();
    }

    /// Single samples go home, alone or for another, until none can; whether any did.
    fn bring_home(&mut self, p: &Problem<'_>, cap: u64) -> bool {
        let is_away = |rank: usize, s: &Sample| p.home[s.index as usize] as usize != rank;
        let mut away = std::mem::take(&mut self.away);
        away.clear();
        self.at.resize(p.costs.len(), 0);
        for (rank, held) in self.held.iter().enumerate() {
            // Of no bytes it is not said where they are.
            for s in held.iter().filter(|s| s.away < 0 || (s.away == 0 && is_away(rank, s))) {
                self.at[s.index as usize] = rank as u32;
                away.push(*s);
            }
        }
        // The round in which a rank's list was last another: who has been looked at since need not be again.
        self.changed.clear();
        self.changed.resize(p.ranks, 0);
        let mut last = 0;
        for round in 1.. {
            if last + 1 < round {
                break;
            }
            let mut at = 0;
            while let Some(s) = away.get(at).copied() {
                let (rank, home) = (self.at[s.index as usize] as usize, p.home[s.index as usize] as usize);
                if rank == home {
                    // In the course of another's way home.
                    away.swap_remove(at);
                    continue;
                }
                let looked_at = self.changed[rank].max(self.changed[home]) + 1 < round;
                let change = if looked_at { None } else { self.homeward(p, cap, rank, &s) };
                let Some((.., back)) = change else {
                    at += 1;
                    continue;
                };
                let back = back.map(|other| self.take(home, other));
                let own = self.held[rank].partition_point(|other| dearest_first(other, &s).is_lt());
                let s = self.take(rank, own);
                self.put(p, home, s);
                // It may stand there twice: gone home for another one, and away again for a third.
                self.at[s.index as usize] = home as u32;
                away.swap_remove(at);
                if let Some(back) = back {
                    if !is_away(home, &back) {
                        away.push(back);
                    }
                    self.at[back.index as usize] = rank as u32;
                    self.put(p, rank, back);
                }
                (self.changed[rank], self.changed[home], last) = (round, round, round);
            }
        }
        self.away = away;
        last > 0
    }

    /// How a sample that `rank` holds can go home so that fewer bytes (of as many bytes, fewer samples) are away.
    fn homeward(&self, p: &Problem<'_>, cap: u64, rank: usize, s: &Sample) -> Option<Change> {
        let home = p.home[s.index as usize] as usize;
        let (load, load_home) = (self.loads.get(rank), self.loads.get(home) + s.cost);
        let (size, size_home) = (self.sizes[rank] - s.size, self.sizes[home] + s.size);
        let own = p.bytes[s.index as usize] as i64;
        if !p.equal_counts && load_home <= cap && size_home <= most(p) {
            return Some((-own, -1, None));
        }
        // Who goes in its place costs at least what home has too much, and at most what the rank has room for.
        let (least, greatest) = (load_home.saturating_sub(cap), cap - (load - s.cost));
        let held = &self.held[home];
        let start = held.partition_point(|other| other.cost > greatest);
        let mut best: Option<Change> = None;
        for (at, other) in held.iter().enumerate().skip(start).take_while(|(_, other)| other.cost >= least) {
            if size + other.size > most(p) || size_home - other.size > most(p) {
                continue;
            }
            let bytes = p.bytes[other.index as usize] as i64;
            let (bytes, samples) = match p.home[other.index as usize] as usize {
                at_home if at_home == home => (bytes - own, 0),
                back if back == rank => (-bytes - own, -2),
                _ => (-own, -1),
            };
            if (bytes, samples) < best.map_or((0, 0), |(b, n, _)| (b, n)) {
                best = Some((bytes, samples, Some(at)));
            }
        }
        best
    }
}
