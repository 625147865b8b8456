//! Failures as bytes, as processes tell each other of them.

use super::TransportError;
use super::frame::{BadFrame, FrameKind, Reader, Writer};

/// Writes what `noticed` has noticed.
pub(super) fn write_failure(frame: &mut Vec<u8>, noticed: usize, failure: &TransportError) {
    let numbers = |writer: Writer<'_>, ranks: &[usize]| {
        ranks.iter().fold(writer, |w, rank| w.number(*rank as u64));
    };
    let writer = Writer::new(frame, FrameKind::Failure, 0).number(noticed as u64);
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

#[cfg(test)]
mod tests {
    use super::*;

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
            write_failure(&mut frame, 3, &failure);
            let (kind, _, mut reader) = Reader::new(&frame).unwrap();
            assert_eq!(kind, FrameKind::Failure);
            assert_eq!(read_failure(&mut reader).unwrap(), (3, failure));
            reader.end().unwrap();
        }
    }
}
