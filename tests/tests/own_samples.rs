//! A process holds its own ranks' samples of each batch and no others, wherever the data come from; files that differ
//! from host to host end all before the first step.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fs_compiler::Strategy;
use fs_executor::data::{self, DataError, GlobalBatch, Histories, Source, Values};
use fs_executor::transport::wire::World;
use fs_executor::{Error, Options, Session};
use fs_schedule::Schedule;
use fs_tests::pipes::joined;
use fs_tests::training::{compile, model};
use safetensors::tensor::{Dtype, TensorView};

/// Counts the ids and samples that batches hold.
struct Counted(Box<dyn Source>, Arc<[AtomicU64; 2]>);

impl Source for Counted {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn epoch_steps(&self) -> Option<u64> {
        self.0.epoch_steps()
    }
    fn digest(&self) -> Result<String, DataError> {
        self.0.digest()
    }
    fn histories(&self) -> Option<Arc<Histories>> {
        self.0.histories()
    }
    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        self.0.fill(step, batch)?;
        let ids = batch.inputs.iter().map(|values| match values {
            Values::Ids(ids) => ids.len(),
            Values::Reals(_) => 0,
        });
        self.1[0].fetch_add(ids.sum::<usize>() as u64, Ordering::Relaxed);
        self.1[1].fetch_add(batch.offsets[0].len() as u64 - 1, Ordering::Relaxed);
        Ok(())
    }
}

fn options() -> Options {
    Options::default().evaluate(false).timeout(Duration::from_secs(20))
}

/// Trains with this file; ids and samples that were held, and losses.
fn held(
    schedule: &Schedule,
    file: Option<&Path>,
    world: Option<World>,
) -> Result<([u64; 2], Vec<u64>), Error> {
    let schedule = Arc::new(schedule.clone());
    let counts: Arc<[AtomicU64; 2]> = Arc::default();
    let source = data::open(&schedule, file, None, schedule.settings.seed)?;
    let source = Box::new(Counted(source, Arc::clone(&counts)));
    let mut session = Session::<f32>::with_source(schedule, options().world(world), source)?;
    let report = session.run(&mut ())?;
    let counts = [0, 1].map(|n| counts[n].load(Ordering::Relaxed));
    Ok((counts, report.loss.iter().map(|loss| loss.to_bits()).collect()))
}

fn apart<R: Send>(processes: &[Vec<usize>], body: impl Fn(usize, World) -> R + Sync) -> Vec<R> {
    let worlds = joined(processes).expect("streams");
    std::thread::scope(|scope| {
        let body = &body;
        let threads =
            worlds.into_iter().enumerate().map(|(p, (world, _))| scope.spawn(move || body(p, world)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().expect("a process")).collect()
    })
}

/// Visits of users, of different lengths.
fn visits(folder: &Path, name: &str, users: usize) {
    let mut text = String::from("user,item\n");
    for user in 0..users {
        for at in 0..4 + user % 9 {
            writeln!(text, "u{user},{}", (user * 7 + at * at * 5) % 60).expect("text grows");
        }
    }
    std::fs::write(folder.join(name), text).expect("the data is written");
}

/// Batches of 12 samples of 1 to 5 ids.
fn tensors(folder: &Path, name: &str, steps: usize) {
    let lengths: Vec<i32> = (0..steps * 12).map(|n| 1 + (n as i32 * 7) % 5).collect();
    let tokens = lengths.iter().sum::<i32>() as usize;
    let bytes = |numbers: &[i64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let ids = bytes(&(0..tokens as i64).map(|n| n * 11 % 60).collect::<Vec<_>>());
    let lengths: Vec<u8> = lengths.iter().flat_map(|n| n.to_le_bytes()).collect();
    let labels: Vec<u8> = (0..tokens).flat_map(|n| ((n % 2) as f32).to_le_bytes()).collect();
    let view = |dtype, shape: Vec<usize>, bytes| TensorView::new(dtype, shape, bytes).expect("a tensor");
    let all = HashMap::from([
        ("lengths", view(Dtype::I32, vec![steps, 3, 4], &lengths)),
        ("ids", view(Dtype::I64, vec![1, tokens], &ids)),
        ("labels", view(Dtype::F32, vec![tokens], &labels)),
    ]);
    let bytes = safetensors::serialize(&all, None).expect("tensors");
    std::fs::write(folder.join(name), bytes).expect("the data is written");
}

fn next_item() -> Schedule {
    let text = "model last {
          table items { rows 60  dim 6  init normal(0, 0.5)  optimizer sgd(lr: 0.1) }
          input history: ids(items) { max 50 }
          input following: next(history)
          loss sampled_softmax(lookup(history), items, following, negatives: 3, temperature: 1, similarity: dot, normalize: tokens)
        }
        train { batch 12  steps 5 }
        workload visits { csv \"visits.csv\" { user \"user\"  item \"item\" } }";
    compile(text, Strategy::Pec, 3, 1, 1)
}

fn clicks() -> Schedule {
    let text = "model clicks {
          table items { rows 60  dim 6  init normal(0, 0.5)  optimizer sgd(lr: 0.1) }
          input history: ids(items) { max 9 }
          input click: label like history
          loss bce_with_logits(linear(lookup(history), 1), click, normalize: tokens)
        }
        train { batch 12  steps 5  optimizer sgd(lr: 0.1) }
        workload w { safetensors \"w.safetensors\" }";
    compile(text, Strategy::Pec, 3, 1, 1)
}

#[test]
fn processes_hold_their_own_samples() {
    let folder = tempfile::TempDir::new().expect("a folder");
    visits(folder.path(), "visits.csv", 31);
    tensors(folder.path(), "w.safetensors", 4);
    let generated = compile(&model("row_wise", "sgd(lr: 0.1)", 60, true), Strategy::Pec, 3, 1, 1);
    let balanced = model("row_wise", "sgd(lr: 0.1)", 60, true).replace("train {", "train { balance on");
    let balanced = compile(&balanced, Strategy::Pec, 3, 1, 1);
    for (schedule, file) in [
        (next_item(), Some("visits.csv")),
        (clicks(), Some("w.safetensors")),
        (generated, None),
        (balanced, None),
    ] {
        let file = file.map(|name| folder.path().join(name));
        let (whole, losses) = held(&schedule, file.as_deref(), None).unwrap_or_else(|e| panic!("{e}"));
        for processes in [vec![vec![0], vec![1], vec![2]], vec![vec![0, 2], vec![1]]] {
            let found = apart(&processes, |_, world| held(&schedule, file.as_deref(), Some(world)));
            let found: Vec<_> = found.into_iter().map(|f| f.unwrap_or_else(|e| panic!("{e}"))).collect();
            for n in [0, 1] {
                let sum: u64 = found.iter().map(|(counts, _)| counts[n]).sum();
                assert_eq!(sum, whole[n], "each sample is held once: {:?}", schedule.model);
            }
            for ((counts, found), own) in found.iter().zip(&processes) {
                let most = whole[1] * own.len() as u64 / 3 + 5 * 2;
                assert!(
                    counts[1] <= most && counts[1] + 5 * 2 >= whole[1] * own.len() as u64 / 3,
                    "{counts:?}"
                );
                assert_eq!(*found, losses, "bits");
            }
        }
    }
}

/// A file that ends earlier on one host: named before the first step, if it can be read; else its reader says why.
#[test]
fn a_shorter_file_on_one_host_ends_all() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    visits(folder.path(), "0.csv", 31);
    visits(folder.path(), "1.csv", 30);
    tensors(folder.path(), "0.safetensors", 4);
    tensors(folder.path(), "1.safetensors", 3);
    for (schedule, kind, what) in [
        (next_item(), "csv", "the number of users is 31 on rank 0 and 30 on rank 1"),
        (clicks(), "safetensors", "the digest of the data is "),
    ] {
        let run = |process: usize, world: World| {
            held(&schedule, Some(&at(&format!("{process}.{kind}"))), Some(world))
                .expect_err("they differ")
                .to_string()
        };
        let said = apart(&[vec![0], vec![1, 2]], run);
        assert_eq!(said[0], said[1]);
        assert!(said[0].contains(what) && said[0].contains(" on rank 1"), "{said:?}");
    }
    // Cut off while it was copied.
    let whole = std::fs::read(at("0.safetensors")).expect("the data");
    std::fs::write(at("1.safetensors"), &whole[..whole.len() - 8]).expect("the data");
    let said = apart(&[vec![0], vec![1, 2]], |process, world| {
        let file = at(&format!("{process}.safetensors"));
        held(&clicks(), Some(&file), Some(world)).expect_err("it is cut off").to_string()
    });
    assert!(said[0].contains("rank 1") && said[0].contains("is gone"), "{said:?}");
    assert!(said[1].contains("1.safetensors") && said[1].contains("cut off"), "{said:?}");
}
