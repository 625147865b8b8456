//! What a process writes of a checkpoint: a file for each of its ranks, and in the first process one with what no rank has for
//! itself.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fs_kernels::Real;
use fs_schedule::Schedule;
use parking_lot::Mutex;
use safetensors::tensor::Dtype;

use super::hot::Replicas;
use super::manifest::{Part, Piece, Tensor};
use super::shard::Shard;
use super::throttle::Throttle;
use crate::data::Vocabulary;
use crate::device::shards::ShardRange;
use crate::device::{Device, Env, Values};
use crate::runtime::tables;
use crate::weights::header::{Planned, bytes};
use crate::weights::layout::{ITEMS, PIECE, SavedTensor, What, entries, vocabulary_names};

/// Values taken at once: an update waits for at most so many to be copied.
const TAKEN: usize = 1 << 15;

/// What is written.
pub(crate) struct State<'a, D: Device> {
    pub schedule: &'a Schedule,
    pub ranks: &'a [Env],
    pub devices: &'a [D],
    pub vocabulary: Option<&'a Vocabulary>,
}

/// Numbers of a shard in a file: which field, which of the three that a device hands over, and where in the file.
struct Own {
    entry: SavedTensor,
    which: usize,
    tensor: usize,
    columns: [usize; 2],
    name: String,
}

/// A shard of a file.
struct Held {
    table: usize,
    part: usize,
    shape: ShardRange,
    /// Where the numbers of its rows are, if they are not in order.
    numbers: Option<(usize, String)>,
    own: Vec<Own>,
}

fn dtype<T: Real>() -> Dtype {
    if size_of::<T>() == 8 { Dtype::F64 } else { Dtype::F32 }
}

/// As in a safetensors header.
fn dtype_name(dtype: Dtype) -> String {
    format!("{dtype:?}")
}

fn which(values: Values) -> usize {
    match values {
        Values::Weights => 0,
        Values::First => 1,
        Values::Second => 2,
    }
}

impl<D: Device> State<'_, D> {
    /// Bytes of this process's files, but for what there is little of.
    pub(crate) fn bytes(&self) -> u64 {
        (0..self.ranks.len()).map(|at| self.plan(at).1.iter().map(bytes).sum::<u64>()).sum()
    }

    /// Writes this process's files into a folder and says what is in them.
    pub(crate) fn write(
        &self,
        folder: &Path,
        throttle: &Throttle<'_>,
        patience: Duration,
    ) -> io::Result<Part> {
        self.devices.iter().for_each(|device| device.begin_taking(patience));
        // A file for each rank, and one that the first process writes.
        let shared = self.ranks.iter().any(|env| env.rank == 0);
        let files = self.ranks.len() + usize::from(shared);
        let (next, written) = (AtomicUsize::new(0), AtomicU64::new(0));
        let parts = Mutex::new(Vec::with_capacity(files));
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= files {
                    return;
                }
                let mut part = Part::default();
                let done = if at < self.ranks.len() {
                    self.write_rank(at, folder, (throttle, &written), &mut part)
                } else {
                    self.write_shared(folder, &mut part)
                };
                let failed = done.is_err();
                parts.lock().push((at, done.map(|()| part)));
                if failed {
                    next.store(files, Ordering::Relaxed);
                }
            }
        };
        let threads = throttle.threads().min(files);
        if threads > 1 {
            thread::scope(|scope| {
                for _ in 1..threads {
                    // Where there is no thread to be had the others do its work.
                    let _ = thread::Builder::new().name("rank-checkpoint".into()).spawn_scoped(scope, work);
                }
                work();
            });
        } else {
            work();
        }
        let mut parts = parts.into_inner();
        parts.sort_by_key(|(at, _)| *at);
        parts.into_iter().try_fold(Part::default(), |mut all, (_, part)| {
            all.join(part?);
            Ok(all)
        })
    }

    /// Names of all tensors, in the order of a saved file.
    pub(crate) fn order(&self) -> Vec<String> {
        let [offsets, text] = vocabulary_names(ITEMS).map(|name| self.vocabulary.map(|_| name));
        let entries = entries(self.schedule).into_iter().map(|entry| entry.name);
        offsets.into_iter().chain(entries).chain(text).collect()
    }

    /// A file's shards and its tensors.
    fn plan(&self, at: usize) -> (Vec<Held>, Vec<Planned>) {
        let env = &self.ranks[at];
        let entries = entries(self.schedule);
        let (mut held, mut planned): (Vec<Held>, Vec<Planned>) = (Vec::new(), Vec::new());
        let shards: Vec<_> = (0..self.schedule.tables.len())
            .flat_map(|t| {
                let holders = tables::holders(&self.schedule.tables[t], std::slice::from_ref(env));
                holders.map(move |(_, part, shape)| (t, part, shape)).collect::<Vec<_>>()
            })
            .collect();
        // Wide numbers first, so that all lie where readers may use them in place.
        for (t, part, shape) in shards {
            let table = &self.schedule.tables[t];
            let name = crate::weights::layout::table_name(&table.name);
            let rows = (shape.rows.end - shape.rows.start) as usize;
            let numbers = (!env.maps[t].is_range()).then(|| {
                planned.push((format!("{name}/rows"), Dtype::I64, vec![rows]));
                (planned.len() - 1, format!("{name}/rows"))
            });
            held.push(Held { table: t, part, shape, numbers, own: Vec::new() });
        }
        for Held { table: t, part, shape, own, .. } in &mut held {
            let rows = (shape.rows.end - shape.rows.start) as usize;
            for entry in &entries {
                let What::Table(field) = entry.what else { continue };
                let Some(values) = field.values().filter(|_| field.table == *t) else { continue };
                let columns = field.columns(*part, shape);
                if columns.is_empty() {
                    continue;
                }
                let whole = columns.len() == field.width;
                let (a, b) = (columns.start, columns.end);
                let name = if whole { entry.name.clone() } else { format!("{}[{a}:{b}]", entry.name) };
                let shape = if entry.shape.len() == 1 { vec![rows] } else { vec![rows, columns.len()] };
                planned.push((name.clone(), dtype::<D::Real>(), shape));
                let tensor = planned.len() - 1;
                own.push(Own { entry: entry.clone(), which: which(values), tensor, columns: [a, b], name });
            }
        }
        (held, planned)
    }

    fn write_rank(
        &self,
        at: usize,
        folder: &Path,
        (throttle, written): (&Throttle<'_>, &AtomicU64),
        part: &mut Part,
    ) -> io::Result<()> {
        let (env, device) = (&self.ranks[at], &self.devices[at]);
        let file = format!("rank-{:05}.safetensors", env.rank);
        let (held, planned) = self.plan(at);
        let mut shard = Shard::create(&folder.join(&file), &planned)?;
        let mut out: [Vec<D::Real>; 3] = Default::default();
        let mut bytes = Vec::new();
        for Held { table, part: p, shape, numbers, own } in &held {
            let rows = (shape.rows.end - shape.rows.start) as usize;
            if let Some((tensor, _)) = numbers {
                for start in (0..rows).step_by(PIECE) {
                    let slots = start..rows.min(start + PIECE);
                    bytes.clear();
                    let number = |slot: usize| env.maps[*table].row(shape.rows.start + slot as u64) as i64;
                    bytes.extend(slots.flat_map(|slot| number(slot).to_le_bytes()));
                    shard.append(*tensor, &bytes)?;
                }
            }
            let replicas = Replicas::take((env, device), *table, (*p, shape));
            let each = (TAKEN / shape.columns.len().max(1)).max(1);
            for start in (0..rows).step_by(each) {
                throttle.wait(written.load(Ordering::Relaxed))?;
                let taken = start..rows.min(start + each);
                device.take_rows(*table, *p, taken.clone(), &mut out);
                device.check().map_err(io::Error::other)?;
                replicas.put(taken, &mut out);
                for own in own {
                    part.look(&own.entry.name, &out[own.which]);
                    shard.append_reals(own.tensor, &out[own.which], &mut bytes)?;
                    written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
            }
            for own in own {
                let tensor = part.tensors.entry(own.entry.name.clone()).or_insert_with(|| Tensor {
                    dtype: dtype_name(dtype::<D::Real>()),
                    shape: own.entry.shape.clone(),
                    pieces: Vec::new(),
                });
                tensor.pieces.push(Piece {
                    file: file.clone(),
                    name: own.name.clone(),
                    rows: numbers.is_none().then_some([shape.rows.start, shape.rows.end]),
                    numbers: numbers.as_ref().map(|(_, name)| name.clone()),
                    columns: own.columns,
                });
            }
        }
        part.files.insert(file, shard.finish()?);
        Ok(())
    }

    /// Dense parameters, which all ranks have, and the vocabulary.
    fn write_shared(&self, folder: &Path, part: &mut Part) -> io::Result<()> {
        let file = "shared.safetensors".to_owned();
        let [offsets, text] = vocabulary_names(ITEMS);
        let dense: Vec<(SavedTensor, usize, Values)> = entries(self.schedule)
            .into_iter()
            .filter_map(|entry| match entry.what {
                What::Parameter(p, values) => Some((entry, p, values)),
                What::Table(_) => None,
            })
            .collect();
        let mut planned: Vec<Planned> = Vec::new();
        if let Some(v) = self.vocabulary {
            planned.push((offsets, Dtype::I64, vec![v.offsets().len()]));
        }
        let first = planned.len();
        let real = dtype::<D::Real>();
        planned.extend(dense.iter().map(|(entry, ..)| (entry.name.clone(), real, entry.shape.clone())));
        if let Some(v) = self.vocabulary {
            planned.push((text, Dtype::U8, vec![v.text().len()]));
        }
        let mut shard = Shard::create(&folder.join(&file), &planned)?;
        let at = self.ranks.iter().position(|env| env.rank == 0).unwrap_or(0);
        let mut bytes = Vec::new();
        let mut taken: Option<(usize, [Vec<D::Real>; 3])> = None;
        for (n, (entry, p, values)) in dense.iter().enumerate() {
            if taken.as_ref().is_none_or(|(own, _)| own != p) {
                taken = Some((*p, self.devices[at].take_parameter(*p)));
                self.devices[at].check().map_err(io::Error::other)?;
            }
            let numbers = taken.as_ref().map_or(&[][..], |(_, of)| &of[which(*values)]);
            part.look(&entry.name, numbers);
            for piece in numbers.chunks(PIECE) {
                shard.append_reals(first + n, piece, &mut bytes)?;
            }
        }
        if let Some(v) = self.vocabulary {
            for piece in v.offsets().chunks(PIECE) {
                bytes.clear();
                bytes.extend(piece.iter().flat_map(|n| n.to_le_bytes()));
                shard.append(0, &bytes)?;
            }
            shard.append(planned.len() - 1, v.text())?;
        }
        part.tensors.extend(planned.iter().map(|of| (of.0.clone(), Tensor::whole(&file, of))));
        part.files.insert(file, shard.finish()?);
        Ok(())
    }
}

/// For a folder that is begun anew.
pub(crate) fn make(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    fs::create_dir(folder)
}
