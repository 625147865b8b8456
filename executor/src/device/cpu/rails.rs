//! In which order a rank asks for rows that come through relays.

use fs_schedule::Nodes;

/// Owners in the order in which a rank asks its relays for their rows: all of one relay, then all of the next.
#[derive(Debug, Default)]
pub(crate) struct Rails {
    /// Owners in that order.
    owners: Vec<u32>,
    /// Where each owner stands in it.
    places: Vec<u32>,
    /// The relay of each place.
    relays: Vec<u32>,
}

impl Rails {
    pub(super) fn new(nodes: Nodes, rank: usize, ranks: usize) -> Self {
        let rank = rank as u32;
        let mut owners: Vec<u32> = (0..ranks as u32).collect();
        owners.sort_by_key(|owner| (nodes.relay(rank, *owner), *owner));
        let mut places = vec![0; ranks];
        (0..).zip(&owners).for_each(|(place, owner)| places[*owner as usize] = place);
        let relays = owners.iter().map(|owner| nodes.relay(rank, *owner)).collect();
        Self { owners, places, relays }
    }

    /// The relay of the owner at a place.
    pub(crate) fn relay(&self, place: usize) -> usize {
        self.relays[place] as usize
    }

    /// Owners in the order of their relays.
    pub(crate) fn owners(&self) -> &[u32] {
        &self.owners
    }

    /// Where each owner stands in that order.
    pub(crate) fn places(&self) -> &[u32] {
        &self.places
    }

    /// From slots of a table with `each` rows an owner to slots in the order of relays.
    pub(super) fn by_relay(&self, slots: &mut [i64], each: i64) {
        Self::exchange(&self.places, slots, each);
    }

    /// And back.
    pub(super) fn by_owner(&self, slots: &mut [i64], each: i64) {
        Self::exchange(&self.owners, slots, each);
    }

    fn exchange(to: &[u32], slots: &mut [i64], each: i64) {
        for slot in slots {
            // What no owner has stays what it is.
            if let Some(to) = to.get((*slot / each) as usize) {
                *slot = i64::from(*to) * each + *slot % each;
            }
        }
    }
}
