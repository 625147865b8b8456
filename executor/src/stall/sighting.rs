//! What was seen of the ranks of a process, and the same as bytes.

use crate::runtime::place::Doing;
use crate::transport::frame::{BadFrame, Reader, Writer};

/// What was seen of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sighting {
    /// Its ranks run a program.
    Running(Running),
    /// They do not, but this.
    Else(String),
}

/// Ranks that run a program. Steps of operations are those of the plan: what batch they work on follows from their stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Running {
    /// The program is that of evaluation.
    pub(super) evaluation: bool,
    /// The training step of batch 0.
    pub(super) first_step: u64,
    /// Batches in the end, as far as it is known.
    pub(super) end: u64,
    pub(super) ranks: Vec<Standing>,
}

/// Where a rank is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) rank: usize,
    /// Per operation, how many steps of it have begun.
    pub(super) begun: Vec<u64>,
    /// Queues that have not come to their end.
    pub(super) queues: Vec<Head>,
}

/// Where a queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// Position among the program's engines.
    pub(super) engine: usize,
    pub(super) op: usize,
    pub(super) step: u64,
    pub(super) state: State,
}

/// What the head of a queue does or waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// It is begun; of a transfer that meets others, those that have not come.
    Begun(Doing, Vec<usize>),
    /// It waits to start, for these.
    Waits(Vec<Need>),
}

/// An operation that must be done first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) op: usize,
    pub(super) step: u64,
    /// Because it still uses the memory of this buffer.
    pub(super) buffer: Option<usize>,
}

/// What stands for no buffer.
const NONE: u64 = u64::MAX;

impl Sighting {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let w = Writer::plain(&mut bytes);
        match self {
            Self::Else(text) => {
                w.number(0).text(text);
            }
            Self::Running(Running { evaluation, first_step, end, ranks }) => {
                let w = w.number(1).number(u64::from(*evaluation)).number(*first_step).number(*end);
                ranks.iter().fold(w.number(ranks.len() as u64), Standing::write);
            }
        }
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, BadFrame> {
        let mut r = Reader::plain(bytes);
        let sighting = if r.number()? == 0 {
            Self::Else(r.text()?.to_owned())
        } else {
            Self::Running(Running {
                evaluation: r.number()? != 0,
                first_step: r.number()?,
                end: r.number()?,
                ranks: list(&mut r, Standing::read)?,
            })
        };
        r.end()?;
        Ok(sighting)
    }
}

impl Standing {
    fn write<'b>(w: Writer<'b>, own: &Self) -> Writer<'b> {
        let w = own
            .begun
            .iter()
            .fold(w.number(own.rank as u64).number(own.begun.len() as u64), |w, n| w.number(*n));
        own.queues.iter().fold(w.number(own.queues.len() as u64), |w, head| {
            let w = w.number(head.engine as u64).number(head.op as u64).number(head.step);
            match &head.state {
                State::Waits(needs) => {
                    needs.iter().fold(w.number(0).number(needs.len() as u64), |w, need| {
                        let buffer = need.buffer.map_or(NONE, |b| b as u64);
                        w.number(need.op as u64).number(need.step).number(buffer)
                    })
                }
                State::Begun(doing, ranks) => {
                    ranks.iter().fold(w.number(*doing as u64).number(ranks.len() as u64), |w, rank| {
                        w.number(*rank as u64)
                    })
                }
            }
        })
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, BadFrame> {
        Ok(Self { rank: r.size()?, begun: list(r, Reader::number)?, queues: list(r, Head::read)? })
    }
}

impl Head {
    fn read(r: &mut Reader<'_>) -> Result<Self, BadFrame> {
        let (engine, op, step, doing) = (r.size()?, r.size()?, r.number()?, r.number()?);
        let state = match Doing::from_number(doing) {
            Some(doing) => State::Begun(doing, list(r, Reader::size)?),
            None => State::Waits(list(r, |r| {
                let (op, step, buffer) = (r.size()?, r.number()?, r.number()?);
                let buffer = usize::try_from(buffer).ok().filter(|_| buffer != NONE);
                Ok(Need { op, step, buffer })
            })?),
        };
        Ok(Self { engine, op, step, state })
    }
}

fn list<'b, T>(
    r: &mut Reader<'b>,
    each: impl Fn(&mut Reader<'b>) -> Result<T, BadFrame>,
) -> Result<Vec<T>, BadFrame> {
    // Not made room for: the number may be anything, and what is not there ends it.
    let mut found = Vec::new();
    for _ in 0..r.size()? {
        found.push(each(r)?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sightings_travel() {
        let head = |op: usize, state: State| Head { engine: 2, op, step: 9, state };
        let needs = vec![Need { op: 1, step: 8, buffer: None }, Need { op: 2, step: 7, buffer: Some(3) }];
        let queues = vec![
            head(4, State::Waits(needs)),
            head(5, State::Begun(Doing::Meets, vec![0, 3])),
            head(6, State::Begun(Doing::Reads, Vec::new())),
        ];
        let standing = |rank: usize| Standing { rank, begun: vec![3, 0, 7], queues: queues.clone() };
        let ranks = vec![standing(1), standing(2)];
        for sighting in [
            Sighting::Else("saves".into()),
            Sighting::Running(Running { evaluation: true, first_step: 40, end: 100, ranks }),
        ] {
            let bytes = sighting.write();
            assert_eq!(Sighting::read(&bytes), Ok(sighting));
            for n in 0..bytes.len() {
                assert!(Sighting::read(&bytes[..n]).is_err(), "{n} of {} bytes", bytes.len());
            }
        }
    }
}
