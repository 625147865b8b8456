//! Settings and data sources, in the schedule's own vocabulary.

use std::path::Path;

use fs_dsl::checked as c;
use fs_dsl::codes;
use fs_dsl::diagnostic::Diagnostic;
use fs_dsl::source::Span;
use fs_schedule as s;
use fs_schedule::reuse::Reuse;
use fs_schedule::{Source, Way};

use super::{ImportError, Importer, source};
use crate::ir::{Attr, Attrs};

/// Where a setting was written, else the model.
fn setting_span(program: &c::Program, name: &str) -> Option<Span> {
    let found = program.train.spans.iter().find(|(n, _)| n == name);
    found.map(|(_, span)| *span).or(program.model.as_ref().map(|m| m.span))
}

/// The same costs for all length groups.
fn cost_model([constant, linear, square]: [f64; 3], groups: usize) -> s::CostModel {
    s::CostModel { constant, groups: vec![s::GroupCost { linear, square }; groups] }
}

/// Each rank has as many samples as any other.
pub(crate) fn divides(program: &c::Program, ranks: u32) -> Result<(), ImportError> {
    let batch = program.train.batch;
    if batch.is_multiple_of(ranks) {
        return Ok(());
    }
    let message = format!("a batch of {batch} samples does not divide over {ranks} ranks");
    let d = match setting_span(program, "batch") {
        Some(span) => Diagnostic::error(codes::CONFLICT, span, message),
        None => Diagnostic::without_place(codes::CONFLICT, message),
    };
    let nearest = u64::from(batch).next_multiple_of(ranks.into());
    let d = d.help(format!("write a batch such as {nearest}, or choose another number of ranks (`--ranks`)"));
    Err(ImportError::new(vec![d], program))
}

/// Parts of a batch: one where that is left to the compiler, which asks for what it tries.
pub(crate) fn microbatches(train: &c::Train) -> u32 {
    train.microbatches.fixed().unwrap_or(1)
}

/// What collectives send; what is not built has been refused.
fn element(dtype: c::DType) -> s::Element {
    match dtype {
        c::DType::BF16 => s::Element::Bf16,
        c::DType::MXINT8 => s::Element::Mxint8,
        c::DType::F32 | c::DType::F16 => s::Element::Real,
    }
}

impl Importer<'_> {
    fn setting_span(&self, name: &str) -> Span {
        setting_span(self.program, name).unwrap_or(self.model.span)
    }

    /// What no pass can do yet, or ever.
    fn check_settings(&mut self) {
        let train = &self.program.train;
        let p = train.precision;
        let wires = [
            ("output_dist", p.output_dist, "`output_dist bf16` or `mxint8`"),
            ("gradient_dist", p.gradient_dist, "`gradient_dist bf16`"),
            ("all_reduce", p.all_reduce, "`all_reduce bf16`"),
        ];
        for (name, dtype, instead) in wires {
            let built = match dtype {
                c::DType::F32 | c::DType::BF16 => true,
                c::DType::F16 => false,
                c::DType::MXINT8 => name == "output_dist",
            };
            if built {
                continue;
            }
            let d = Diagnostic::error(
                codes::NOT_BUILT,
                self.setting_span("precision"),
                format!("{name} in {} is not built yet", if dtype == c::DType::F16 { "f16" } else { "bf16" }),
            );
            self.diagnostics.push(d.help(format!("write {instead}, or leave it out")));
        }
        if p.gradient_dist != c::DType::F32 && !train.unique_rows {
            let d = Diagnostic::error(
                codes::CONFLICT,
                self.setting_span("unique_rows"),
                "gradients that travel rounded are summed by row before they do",
            );
            let d = d.label("would round each occurrence by itself");
            self.diagnostics.push(d.help("leave out `unique_rows off`, or write `gradient_dist f32`"));
        }
        let (lookahead, microbatches) = (train.lookahead, microbatches(train));
        let reuse = Reuse::new(lookahead, microbatches);
        // More microbatches than classes can be are not worth counting.
        if microbatches as usize > Reuse::MOST || reuse.count(Way::Forward) > Reuse::MOST {
            let most = Reuse::MOST;
            let d = Diagnostic::error(
                codes::TOO_MANY_CLASSES,
                self.setting_span("microbatches"),
                format!(
                    "lookahead {lookahead} with {microbatches} microbatches makes more than {most} classes of rows"
                ),
            );
            self.diagnostics
                .push(d.label("this many").help("lower the lookahead or the number of microbatches"));
        }
        if let c::Balancing::On(c::Balance { cost: Some(cost), .. }) = train.balance {
            let longest = || self.model.lengths.iter().map(|l| l.max);
            if !cost_model(cost, self.model.lengths.len()).usable(longest()) {
                let ids: u64 = longest().map(u64::from).sum();
                let d = Diagnostic::error(
                    codes::CONFLICT,
                    self.setting_span("balance"),
                    format!("a sample of {ids} ids would cost more than can be added up"),
                );
                self.diagnostics
                    .push(d.help("only ratios of costs matter: divide all of them by the largest"));
            }
        }
    }

    pub(super) fn settings(&mut self) {
        self.check_settings();
        let train = &self.program.train;
        let groups = self.model.lengths.len();
        let settings = s::Settings {
            node: None,
            sums_by_node: false,
            wire: s::WirePrecision {
                rows: element(train.precision.output_dist),
                gradients: element(train.precision.gradient_dist),
                dense: element(train.precision.all_reduce),
            },
            batch: train.batch,
            microbatches: microbatches(train),
            duration: match train.duration {
                c::Duration::Steps(n) => s::Duration::Steps(n),
                c::Duration::Epochs(n) => s::Duration::Epochs(n),
            },
            seed: train.seed,
            optimizer: train.optimizer,
            balance: match train.balance {
                // What is left to the compiler is decided where the passes are chosen.
                c::Balancing::Auto | c::Balancing::Off => None,
                c::Balancing::On(balance) => Some(s::Balance {
                    // Without costs of its own: those of the model's arithmetic, once it is known.
                    cost: balance.cost.map_or_else(s::CostModel::default, |cost| cost_model(cost, groups)),
                    limit: balance.limit.map(|limit| match limit {
                        c::Limit::Tokens(most) => s::RankLimit::Tokens(most),
                        c::Limit::Bytes(most) => s::RankLimit::Bytes(most),
                    }),
                    equal_counts: balance.equal_counts,
                    fit: balance.fit,
                    ..s::Balance::default()
                }),
            },
        };
        let data = self.program.workload.as_ref().map(|w| self.data(w));
        let evaluate = self.program.workload.as_ref().and_then(|w| w.evaluate);
        let evaluate = evaluate.map(|c::Evaluate::LeaveLastOut| s::Evaluate::LeaveLastOut);
        let sources: Vec<Source> = self.program.sources.files.iter().map(source).collect();
        let unique = train.unique_rows;
        self.module.attrs = Attrs::from([
            ("settings".into(), Attr::from(&settings)),
            ("data".into(), Attr::from(&data)),
            ("evaluate".into(), Attr::from(&evaluate)),
            ("sources".into(), Attr::from(&sources)),
            ("unique_rows".into(), Attr::Bool(unique)),
            ("lookahead".into(), Attr::Int(train.lookahead.into())),
        ]);
        // What is not said is f32.
        if train.precision.compute == c::DType::BF16 {
            self.module.attrs.insert("compute".into(), Attr::Str("bf16".into()));
        }
    }

    /// A path in a `.fs` file is relative to that file.
    fn path(&self, workload: &c::Workload, path: &str) -> String {
        let file = self.program.sources.files.get(workload.span.file as usize);
        let folder = file.and_then(|f| Path::new(&f.path).parent()).unwrap_or(Path::new(""));
        folder.join(path).to_string_lossy().into_owned()
    }

    fn data(&self, workload: &c::Workload) -> s::Data {
        match &workload.source {
            c::DataSource::Csv { path, user, item, time, rating, min_interactions } => s::Data::Csv {
                path: self.path(workload, path),
                user: user.clone(),
                item: item.clone(),
                time: time.clone(),
                rating: rating.clone(),
                min_interactions: *min_interactions,
            },
            c::DataSource::Safetensors { path } => s::Data::Safetensors { path: self.path(workload, path) },
            c::DataSource::Generate { lengths, ids, labels, samples } => {
                s::Data::Generate { lengths: *lengths, ids: *ids, labels: *labels, samples: *samples }
            }
        }
    }
}
