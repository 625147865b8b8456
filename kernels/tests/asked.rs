//! What homes ask owners for on behalf of users is what each user finds to ask for by itself.

use fs_kernels::asked::{Request, group_by_owner, join};
use fs_kernels::unique::{
    Unique, bucketize_by_owner, occurrences_by_owner, unique_by_owner, uses_of_entries,
};
use proptest::prelude::*;

/// A use: the rank that reads it, the rank that works on it, its microbatch and row.
type Use = (usize, usize, usize, i64);

/// Ids of one microbatch after the other, as lists, and where each microbatch ends.
fn parts(uses: &[Use], microbatches: usize, id: impl Fn(&Use) -> i64) -> (Vec<Vec<i64>>, Vec<usize>) {
    let of = |m: usize| uses.iter().filter(|u| u.2 == m).map(&id).collect::<Vec<_>>();
    let lists: Vec<Vec<i64>> = (0..microbatches).map(of).collect();
    let ends = lists.iter().scan(0, |end, list| {
        *end += list.len();
        Some(*end)
    });
    (lists.clone(), ends.collect())
}

proptest! {
    #[test]
    fn owners_find_the_lists_of_users(
        uses in prop::collection::vec((0usize..4, 0usize..4, 0usize..3, prop_oneof![0i64..40, 0i64..4]), 0..80),
        ranks in 1usize..5,
        distinct in any::<bool>(),
    ) {
        const ROWS: i64 = 40;
        let microbatches = 3;
        let uses: Vec<Use> = uses.into_iter().map(|(home, user, m, row)| (home % ranks, user % ranks, m, row)).collect();
        let each = (ROWS as usize).div_ceil(ranks);
        let space = each * ranks;
        let mut found = Unique::new();
        // What each owner hears, from all homes.
        let mut heard: Vec<Vec<Request>> = vec![Vec::new(); ranks];
        for home in 0..ranks {
            let own: Vec<Use> = uses.iter().filter(|u| u.0 == home).copied().collect();
            let (lists, ends) = parts(&own, microbatches, |u| u.1 as i64 * space as i64 + u.3);
            let lists: Vec<&[i64]> = lists.iter().map(Vec::as_slice).collect();
            if distinct {
                unique_by_owner(&lists, space, ranks, &mut found).unwrap();
            } else {
                bucketize_by_owner(&lists, space, ranks, &mut found).unwrap();
            }
            let mut used = vec![0; 2 * found.ids.len()];
            uses_of_entries(&found.inverse, &ends, found.ids.len(), &mut used);
            let (mut counts, mut next) = (vec![7; ranks], Vec::new());
            let mut entries = vec![(-1, u32::MAX, 0); found.ids.len()];
            group_by_owner(&found.ids, space as u64, each as u64, &mut counts, &mut next, |from, to, row, user| {
                entries[to] = (row, user, from);
            });
            let mut at = 0;
            for (owner, count) in counts.iter().enumerate() {
                for (row, user, from) in &entries[at..at + *count as usize] {
                    prop_assert_eq!(*row as usize / each, owner);
                    let row = (*row as usize - owner * each) as u32;
                    let (first, last) = (used[2 * from], used[2 * from + 1]);
                    heard[owner].push(Request { user: *user, row, first, last });
                }
                at += *count as usize;
            }
            prop_assert_eq!(at, entries.len());
        }
        for requests in &mut heard {
            join(requests, distinct);
        }
        for user in 0..ranks {
            let own: Vec<Use> = uses.iter().filter(|u| u.1 == user).copied().collect();
            let (lists, ends) = parts(&own, microbatches, |u| u.3);
            let lists: Vec<&[i64]> = lists.iter().map(Vec::as_slice).collect();
            if distinct {
                unique_by_owner(&lists, each, ranks, &mut found).unwrap();
            } else {
                occurrences_by_owner(&lists, each, ranks, &mut found).unwrap();
            }
            let mut used = vec![0; 2 * found.ids.len()];
            uses_of_entries(&found.inverse, &ends, found.ids.len(), &mut used);
            let pairs = found.ids.iter().zip(used.chunks_exact(2));
            let expected: Vec<(i64, u8, u8)> = pairs.map(|(id, u)| (*id, u[0], u[1])).collect();
            let joined = heard.iter().enumerate().flat_map(|(owner, requests)| {
                let of = requests.iter().filter(move |r| r.user as usize == user);
                of.map(move |r| ((owner * each) as i64 + i64::from(r.row), r.first, r.last))
            });
            prop_assert_eq!(joined.collect::<Vec<_>>(), expected);
            let counts = heard.iter().map(|requests| requests.iter().filter(|r| r.user as usize == user).count());
            prop_assert_eq!(counts.collect::<Vec<_>>(), found.counts.clone());
        }
    }

    /// Every occurrence once, ascending, those of one id in order.
    #[test]
    fn occurrences_keep_their_order(ids in prop::collection::vec(0i64..30, 0..60), cut in 0usize..60) {
        let (a, b) = ids.split_at(cut.min(ids.len()));
        let mut found = Unique::new();
        occurrences_by_owner(&[a, b], 10, 3, &mut found).unwrap();
        let mut expected: Vec<(i64, usize)> = ids.iter().copied().zip(0..).collect();
        expected.sort_unstable();
        let positions = expected.iter().map(|(_, position)| found.inverse[*position] as usize);
        prop_assert_eq!(positions.collect::<Vec<_>>(), (0..ids.len()).collect::<Vec<_>>());
        prop_assert_eq!(&found.ids, &expected.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        prop_assert_eq!(found.counts.iter().sum::<usize>(), ids.len());
    }
}
