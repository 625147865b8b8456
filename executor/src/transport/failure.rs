//! Failures as bytes, as processes tell each other of them, and which of several counts.

use super::frame::{BadFrame, FrameKind, Reader, Writer};
use super::{CONNECTION, TransportError};

/// Writes what `noticed` has noticed, or what `noticed` says that counts.
pub(super) fn write_failure(frame: &mut Vec<u8>, kind: FrameKind, noticed: usize, failure: &TransportError) {
    let numbers = |writer: Writer<'_>, ranks: &[usize]| {
        ranks.iter().fold(writer, |w, rank| w.number(*rank as u64));
    };
    let writer = Writer::new(frame, kind, 0).number(noticed as u64);
    match failure {
        TransportError::Failed { rank, op, message } => {
            writer.number(0).number(*rank as u64).text(op).text(message);
        }
        TransportError::Sizes(message) => {
            writer.number(1).text(message);
        }
        TransportError::Timeout { op, batch, ranks, seconds } => {
            let batch = batch.map_or(0, |batch| batch + 1);
            let writer = writer.number(2).text(op).number(batch).number(seconds.to_bits());
            numbers(writer.number(ranks.len() as u64), ranks);
        }
        TransportError::Differ { name, rank, own, other_rank, other } => {
            let ranks = [*rank, *other_rank];
            numbers(writer.number(3).text(name).text(own).text(other), &ranks);
        }
    }
}

/// The process that noticed it, and the failure.
pub(super) fn read_failure(reader: &mut Reader<'_>) -> Result<(usize, TransportError), BadFrame> {
    let noticed = reader.size()?;
    let failure = match reader.number()? {
        0 => TransportError::Failed {
            rank: reader.size()?,
            op: reader.text()?.into(),
            message: reader.text()?.into(),
        },
        1 => TransportError::Sizes(reader.text()?.into()),
        2 => {
            let (op, batch) = (reader.text()?.to_owned(), reader.number()?.checked_sub(1));
            let (seconds, n) = (f64::from_bits(reader.number()?), reader.size()?);
            let ranks = (0..n).map(|_| reader.size()).collect::<Result<_, _>>()?;
            TransportError::Timeout { op, batch, ranks, seconds }
        }
        _ => {
            let (name, own, other) = (reader.text()?.into(), reader.text()?.into(), reader.text()?.into());
            TransportError::Differ { name, rank: reader.size()?, own, other_rank: reader.size()?, other }
        }
    };
    Ok((noticed, failure))
}

/// The failure that counts among those that processes have said: per process the one that noticed it, and what it is.
/// `process_of` says which process runs a rank.
///
/// Who stands still makes others wait, and these others still, but who waits says so. So of those who have waited too long the ones
/// count who have waited only for processes that have said nothing at all, then those who have waited for such a one beside
/// others; of several that of the first process.
pub(super) fn that_counts<'a>(
    said: &'a [Option<(usize, TransportError)>],
    process_of: &[usize],
) -> Option<&'a TransportError> {
    let speaks = |rank: &usize| process_of.get(*rank).is_none_or(|process| said[*process].is_some());
    let doubt = |failure: &TransportError| match blamed(failure) {
        ranks if !ranks.iter().any(speaks) => 0,
        ranks if !ranks.iter().all(speaks) => 1,
        _ => 2,
    };
    let first = said.iter().flatten().min_by_key(|(by, failure)| (doubt(failure), *by));
    first.map(|(_, failure)| failure)
}

/// The ranks of which nothing was heard.
pub(super) fn blamed(failure: &TransportError) -> &[usize] {
    match failure {
        TransportError::Timeout { ranks, .. } => ranks,
        TransportError::Failed { rank, op, .. } if op == CONNECTION => std::slice::from_ref(rank),
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits_for(ranks: &[usize]) -> TransportError {
        TransportError::Timeout { op: "ids".into(), batch: Some(1), ranks: ranks.to_vec(), seconds: 1.0 }
    }

    /// Four processes, the last with two ranks.
    #[test]
    fn who_waits_for_one_that_waits_does_not_count() {
        let process_of = [0, 1, 2, 3, 3];
        let counts = |said: [Option<(usize, &[usize])>; 4]| {
            let said = said.map(|said| said.map(|(by, ranks)| (by, waits_for(ranks))));
            match that_counts(&said, &process_of) {
                Some(TransportError::Timeout { ranks, .. }) => ranks.clone(),
                _ => Vec::new(),
            }
        };
        assert!(counts([None; 4]).is_empty());
        // All others have heard of one.
        assert_eq!(counts([Some((0, &[2])), Some((0, &[2])), None, Some((0, &[2]))]), [2]);
        // The second waits too, for the third, whether the first waits for that, too, or not.
        assert_eq!(counts([Some((0, &[1])), Some((1, &[2])), None, Some((0, &[1]))]), [2]);
        assert_eq!(counts([Some((0, &[1, 2])), Some((1, &[2])), None, Some((3, &[1]))]), [2]);
        assert_eq!(counts([Some((0, &[1, 2])), Some((0, &[1, 2])), None, Some((3, &[1]))]), [1, 2]);
        // Two wait for the same one, of which a rank is the second of its process.
        assert_eq!(counts([Some((0, &[3])), Some((1, &[3, 4])), Some((2, &[0])), None]), [3]);
        assert_eq!(counts([Some((0, &[4])), Some((0, &[4])), Some((0, &[4])), Some((0, &[4]))]), [4]);
        // One that hears all others and is not heard takes what these say.
        assert_eq!(counts([Some((0, &[2])), Some((0, &[2])), Some((2, &[1, 2])), Some((0, &[2]))]), [2]);
        // In a circle: the first. A rank that does not exist is nobody's.
        assert_eq!(counts([Some((0, &[1])), Some((1, &[0])), Some((1, &[0])), Some((1, &[0]))]), [1]);
        assert_eq!(counts([Some((0, &[9])), Some((1, &[0])), None, None]), [9]);
    }

    #[test]
    fn a_lost_connection_blames_and_a_failure_does_not() {
        let failed = |rank: usize, op: &str| TransportError::Failed {
            rank,
            op: op.into(),
            message: "out of luck".into(),
        };
        let said = [Some((0, failed(1, CONNECTION))), Some((1, waits_for(&[2]))), None];
        assert_eq!(that_counts(&said, &[0, 1, 2]), Some(&waits_for(&[2])));
        let said = [Some((0, failed(1, "gather"))), Some((1, waits_for(&[2]))), None];
        assert_eq!(that_counts(&said, &[0, 1, 2]), Some(&failed(1, "gather")));
    }

    #[test]
    fn failures_travel() {
        let failures = [
            TransportError::Failed { rank: 3, op: "rows".into(), message: "out of luck".into() },
            TransportError::Sizes("3 of 4".into()),
            TransportError::Timeout { op: "ids".into(), batch: Some(0), ranks: vec![1, 2], seconds: 0.5 },
            TransportError::Timeout { op: "end".into(), batch: None, ranks: Vec::new(), seconds: 2.0 },
            TransportError::Differ {
                name: "seed".into(),
                rank: 0,
                own: "1".into(),
                other_rank: 2,
                other: "7".into(),
            },
        ];
        for failure in failures {
            let mut frame = Vec::new();
            write_failure(&mut frame, FrameKind::Failure, 3, &failure);
            let (kind, _, mut reader) = Reader::new(&frame).unwrap();
            assert_eq!(kind, FrameKind::Failure);
            assert_eq!(read_failure(&mut reader).unwrap(), (3, failure));
            reader.end().unwrap();
        }
    }
}
