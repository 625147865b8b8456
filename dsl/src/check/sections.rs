//! `train`, `workload` and `cluster`.

use super::Checker;
use super::bind::Callee;
use super::bound::Bound;
use super::model::dtype;
use super::settings;
use super::values::{Arg, Failed, Given};
use crate::ast::{self, Entry, ExprKind, Section};
use crate::checked::{
    Balancing, Cluster, DType, DataSource, DenseOptimizer, Duration, Evaluate, InputKind, Link, Microbatches,
    Precision, Train, Workload,
};
use crate::cluster;
use crate::codes;
use crate::diagnostic::{Diagnostic, alternatives, closest};
use crate::signature::{Need, Param};
use crate::source::Span;

impl Default for Train {
    fn default() -> Self {
        Self {
            batch: 32,
            duration: Duration::Epochs(1),
            optimizer: DenseOptimizer::Adam {
                lr: 1e-3,
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay: 0.0,
            },
            balance: Balancing::Auto,
            lookahead: 1,
            microbatches: Microbatches::Fixed(1),
            unique_rows: true,
            precision: Precision {
                compute: DType::F32,
                output_dist: DType::F32,
                gradient_dist: DType::F32,
                all_reduce: DType::F32,
            },
            seed: 0,
            spans: Vec::new(),
        }
    }
}

/// Settings with braces of their own, taken out of the others.
struct Nested<'a> {
    entries: Vec<&'a Entry>,
}

impl<'a> Nested<'a> {
    fn get(&self, key: &str) -> Option<&'a Entry> {
        self.entries.iter().find(|e| e.key.text == key).copied()
    }
}

impl<'a> Checker<'a> {
    /// Plain settings in braces.
    pub(super) fn settings(
        &mut self,
        title: &str,
        keyword: Span,
        given: Option<&'a ast::Settings>,
        params: &'static [Param],
    ) -> Result<Bound, Failed> {
        self.settings_with(title, keyword, given, params, &[]).0
    }

    /// Settings of which some have braces of their own.
    fn settings_with(
        &mut self,
        title: &str,
        keyword: Span,
        given: Option<&'a ast::Settings>,
        params: &'static [Param],
        nested: &[&str],
    ) -> (Result<Bound, Failed>, Nested<'a>) {
        let mut args = Vec::new();
        let mut found = Nested { entries: Vec::new() };
        let mut failed = false;
        let mut misspelt = false;
        for entry in given.map_or(&[][..], |g| &g.entries) {
            let key = entry.key.text.as_str();
            if nested.contains(&key) {
                if let Some(first) = found.get(key) {
                    let d = Diagnostic::error(
                        codes::SETTING_TWICE,
                        entry.key.span,
                        format!("`{key}` is given twice"),
                    )
                    .label("a second time")
                    .also(first.key.span, "first here");
                    self.push(d);
                    failed = true;
                } else {
                    found.entries.push(entry);
                }
                continue;
            }
            let known = params.iter().any(|p| p.name == key);
            if known && let Some(s) = &entry.settings {
                self.push(
                    Diagnostic::error(
                        codes::WRONG_KIND,
                        s.span,
                        format!("`{key}` has no settings of its own"),
                    )
                    .label("braces are not expected here"),
                );
                failed = true;
            }
            if !known {
                let names: Vec<&str> = params.iter().map(|p| p.name).chain(nested.iter().copied()).collect();
                self.push(
                    Diagnostic::error(
                        codes::UNKNOWN_SETTING,
                        entry.key.span,
                        format!("`{title}` has no setting `{key}`"),
                    )
                    .label("unknown setting")
                    .note(format!(
                        "known here: {}",
                        alternatives(names.iter().copied()).replace(" or ", " and ")
                    ))
                    .suggest(key, names),
                );
                failed = true;
                misspelt |= closest(key, params.iter().map(|p| p.name)).is_some();
                continue;
            }
            let Some(value) = &entry.value else {
                failed = true;
                if let Some(p) = params.iter().find(|p| p.name == key) {
                    self.push(
                        Diagnostic::error(
                            codes::WRONG_KIND,
                            entry.key.span,
                            format!("`{key}` needs a value"),
                        )
                        .label(format!("expected {}", p.kind.words())),
                    );
                }
                continue;
            };
            self.lenient = true;
            let given = Given { val: self.eval(value, None), span: value.span };
            self.lenient = false;
            args.push(Arg { name: Some(entry.key.clone()), given });
        }
        // A misspelt setting is not missing as well.
        let damaged = misspelt || given.is_some_and(|g| self.is_damaged(g.span));
        let callee = Callee { name: title, settings: true, span: keyword, damaged };
        let bound = self.bind(callee, params, args, keyword, None);
        (if failed { Err(Failed) } else { bound }, found)
    }

    pub(super) fn check_sections(
        &mut self,
        sections: &[&'a Section],
        has_model: bool,
    ) -> (Train, Option<Workload>, Vec<Cluster>) {
        let mut train: Option<(&Section, Train)> = None;
        let mut workload: Option<(&Section, Option<Workload>)> = None;
        let mut clusters: Vec<Cluster> = Vec::new();
        for &section in sections {
            let keyword = section.keyword.text.as_str();
            let first = match keyword {
                "train" => train.as_ref().map(|t| t.0),
                "workload" => workload.as_ref().map(|w| w.0),
                _ => None,
            };
            if let Some(first) = first {
                let d = Diagnostic::error(
                    codes::SEVERAL,
                    section.keyword.span,
                    format!("a program has one `{keyword}`"),
                )
                .label("a second one")
                .also(first.keyword.span, "the first");
                self.push(d);
            }
            match keyword {
                "train" => train = Some((section, self.train(section).unwrap_or_default())),
                "workload" => workload = Some((section, self.workload(section, has_model).ok())),
                _ => {
                    if let Ok(c) = self.cluster(section) {
                        if let Some(old) = clusters.iter().find(|o| o.name == c.name) {
                            let mut d = Diagnostic::error(
                                codes::DUPLICATE_NAME,
                                section.span,
                                format!("there is already a cluster called `{}`", c.name),
                            );
                            if let Some(span) = old.span {
                                d = d.also(span, "first here");
                            }
                            self.push(d);
                        }
                        clusters.push(c);
                    }
                }
            }
        }
        (train.map(|t| t.1).unwrap_or_default(), workload.and_then(|w| w.1), clusters)
    }

    fn train(&mut self, section: &'a Section) -> Result<Train, Failed> {
        let (bound, nested) = self.settings_with(
            "train",
            section.keyword.span,
            section.settings.as_ref(),
            settings::TRAIN,
            &["precision"],
        );
        let precision = match nested.get("precision") {
            Some(e) if e.value.is_some() || e.settings.is_none() => {
                let d = Diagnostic::error(codes::WRONG_KIND, e.span, "`precision` takes settings in braces")
                    .label("write `precision { compute bf16 }`");
                return Err(self.push(d));
            }
            Some(e) => {
                Some(self.settings("precision", e.key.span, e.settings.as_ref(), settings::PRECISION)?)
            }
            None => None,
        };
        let b = bound?;
        let duration = match (b.has("steps"), b.has("epochs")) {
            (true, true) => {
                let d = Diagnostic::error(
                    codes::CONFLICT,
                    b.span_of("steps"),
                    "`steps` and `epochs` both say how long to train",
                )
                .label("one of them")
                .also(b.span_of("epochs"), "the other");
                return Err(self.push(d));
            }
            (true, false) => Duration::Steps(b.count("steps")?),
            (false, true) => Duration::Epochs(b.count("epochs")? as u32),
            (false, false) => Duration::Epochs(1),
        };
        let (batch, microbatches) = (b.count("batch")? as u32, b.count_or_auto("microbatches")?);
        let microbatches = microbatches.map_or(Microbatches::Auto, |n| Microbatches::Fixed(n as u32));
        if let Some(microbatches) = microbatches.fixed().filter(|n| batch % n != 0) {
            let d = Diagnostic::error(
                codes::CONFLICT,
                b.span_of("microbatches"),
                format!("{batch} samples cannot be cut into {microbatches} equal microbatches"),
            )
            .label(format!("does not divide {batch}"))
            .also(b.span_of("batch"), "the batch");
            return Err(self.push(d));
        }
        let mut train = Train {
            batch,
            duration,
            optimizer: b.dense_optimizer("optimizer")?,
            balance: b.balance("balance")?,
            lookahead: b.count("lookahead")? as u32,
            microbatches,
            unique_rows: b.switch("unique_rows")?,
            seed: b.count("seed")?,
            ..Train::default()
        };
        if let Some(p) = precision {
            train.precision = Precision {
                compute: dtype(p.choice("compute")?),
                output_dist: dtype(p.choice("output_dist")?),
                gradient_dist: dtype(p.choice("gradient_dist")?),
                all_reduce: dtype(p.choice("all_reduce")?),
            };
        }
        let entries = section.settings.iter().flat_map(|s| &s.entries);
        train.spans = entries.map(|e| (e.key.text.clone(), e.span)).collect();
        Ok(train)
    }

    fn workload(&mut self, section: &'a Section, has_model: bool) -> Result<Workload, Failed> {
        const SOURCES: [&str; 3] = ["csv", "safetensors", "generate"];
        let Some(name) = &section.name else { return Err(Failed) };
        let (bound, nested) = self.settings_with(
            "workload",
            section.keyword.span,
            section.settings.as_ref(),
            settings::WORKLOAD,
            &SOURCES,
        );
        let mut sources = nested.entries.iter();
        let Some(&entry) = sources.next() else {
            if self.is_damaged(section.span) {
                return Err(Failed);
            }
            return Err(self.push(
                Diagnostic::error(
                    codes::MISSING_SETTING,
                    name.span,
                    format!("the workload `{}` does not say where samples come from", name.text),
                )
                .label("no source")
                .help("add `csv \"file\" { .. }`, `safetensors \"file\"` or `generate { .. }`"),
            ));
        };
        if let Some(second) = sources.next() {
            let d =
                Diagnostic::error(codes::CONFLICT, second.key.span, "a workload has one source of samples")
                    .label("a second source")
                    .also(entry.key.span, "the first");
            self.push(d);
        }
        let source = self.source(entry)?;
        let b = bound?;
        let evaluate = if b.has("evaluate") { Some(Evaluate::LeaveLastOut) } else { None };
        let csv = matches!(source, DataSource::Csv { .. });
        if evaluate.is_some() && !csv {
            let d = Diagnostic::error(
                codes::CONFLICT,
                b.span_of("evaluate"),
                "`leave_last_out` needs the histories of users",
            )
            .label("possible with `csv` only")
            .also(entry.key.span, "the source");
            return Err(self.push(d));
        }
        if csv && has_model {
            self.check_csv_inputs(entry)?;
        }
        Ok(Workload { name: name.text.clone(), source, evaluate, span: section.span })
    }

    /// A file of interactions gives one sequence of items per user, and nothing else.
    fn check_csv_inputs(&mut self, entry: &Entry) -> Result<(), Failed> {
        let mut sequence: Option<Span> = None;
        let mut wrong = Vec::new();
        for input in &self.model.inputs {
            match input.kind {
                InputKind::Next { .. } => {}
                InputKind::Ids { .. } if sequence.is_none() => sequence = Some(input.span),
                _ => wrong.push((input.name.clone(), input.span)),
            }
        }
        let mut result = Ok(());
        for (name, span) in wrong {
            let d = Diagnostic::error(
                codes::CONFLICT,
                span,
                format!("a CSV file cannot provide the input `{name}`"),
            )
            .label("no data for it")
            .also(entry.key.span, "gives one sequence of items per user");
            result = Err(self.push(d));
        }
        result
    }

    fn path(&mut self, entry: &'a Entry) -> Result<String, Failed> {
        match entry.value.as_ref().map(|e| (&e.kind, e.span)) {
            Some((ExprKind::Text(path), _)) if !path.is_empty() => Ok(path.clone()),
            found => {
                let span = found.map_or(entry.key.span, |f| f.1);
                let d = Diagnostic::error(
                    codes::WRONG_KIND,
                    span,
                    format!("`{}` is followed by the name of a file in quotes", entry.key.text),
                )
                .label("expected a string");
                Err(self.push(d))
            }
        }
    }

    fn source(&mut self, entry: &'a Entry) -> Result<DataSource, Failed> {
        let key = entry.key.text.as_str();
        match key {
            "csv" => {
                let path = self.path(entry);
                let b = self.settings("csv", entry.key.span, entry.settings.as_ref(), settings::CSV)?;
                let optional = |name: &str| if b.has(name) { b.text(name).map(Some) } else { Ok(None) };
                Ok(DataSource::Csv {
                    path: path?,
                    user: b.text("user")?,
                    item: b.text("item")?,
                    time: optional("time")?,
                    rating: optional("rating")?,
                    min_interactions: if b.has("min_interactions") {
                        Some(b.count("min_interactions")? as u32)
                    } else {
                        None
                    },
                })
            }
            "safetensors" => {
                let path = self.path(entry)?;
                if let Some(s) = &entry.settings {
                    let d = Diagnostic::error(codes::WRONG_KIND, s.span, "`safetensors` has no settings");
                    return Err(self.push(d));
                }
                Ok(DataSource::Safetensors { path })
            }
            _ => {
                if let Some(value) = &entry.value {
                    let d = Diagnostic::error(codes::WRONG_KIND, value.span, "`generate` is followed by `{`");
                    return Err(self.push(d));
                }
                let b =
                    self.settings("generate", entry.key.span, entry.settings.as_ref(), settings::GENERATE)?;
                Ok(DataSource::Generate {
                    lengths: b.lengths("lengths")?,
                    ids: b.ids("ids")?,
                    labels: b.labels("labels")?,
                    samples: if b.has("samples") { Some(b.count("samples")?) } else { None },
                })
            }
        }
    }

    fn cluster(&mut self, section: &'a Section) -> Result<Cluster, Failed> {
        let Some(name) = &section.name else { return Err(Failed) };
        let preset = match (&section.from, &section.settings) {
            (Some(from), _) => Some(from),
            (None, None) => Some(name),
            (None, Some(_)) => None,
        };
        let base = match preset {
            None => None,
            Some(p) => {
                let found = cluster::preset(&p.text);
                if found.is_none() {
                    let names = cluster::PRESETS.iter().copied();
                    return Err(self.push(
                        Diagnostic::error(
                            codes::UNKNOWN_PRESET,
                            p.span,
                            format!("there is no cluster preset `{}`", p.text),
                        )
                        .label("unknown preset")
                        .note(format!("presets: {}", alternatives(names.clone()).replace(" or ", " and ")))
                        .suggest(&p.text, names),
                    ));
                }
                found
            }
        };
        let nested_names = ["intra", "inter", "host", "flops"];
        let params = if base.is_some() { cluster_overrides() } else { settings::CLUSTER };
        let title = format!("cluster {}", name.text);
        let (bound, nested) = self.settings_with(
            &title,
            section.keyword.span,
            section.settings.as_ref(),
            params,
            &nested_names,
        );
        let mut links =
            [base.as_ref().map(|b| b.intra), base.as_ref().map(|b| b.inter), base.as_ref().map(|b| b.host)];
        let mut failed = false;
        for (slot, key) in links.iter_mut().zip(["intra", "inter", "host"]) {
            if let Some(e) = nested.get(key) {
                match self.link(e) {
                    Ok(l) => *slot = Some(l),
                    Err(Failed) => failed = true,
                }
            }
        }
        let mut flops = base.as_ref().map_or(Vec::new(), |b| b.flops.clone());
        if let Some(e) = nested.get("flops") {
            let b = self.settings("flops", e.key.span, e.settings.as_ref(), settings::FLOPS)?;
            for (key, ty) in [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16)] {
                if b.has(key) {
                    let rate = b.number(key)?;
                    flops.retain(|f| f.0 != ty);
                    flops.push((ty, rate));
                }
            }
            flops.sort_by_key(|f| f.0);
        }
        let b = bound?;
        if failed {
            return Err(Failed);
        }
        let count = |key: &str, old: Option<u32>| match old {
            Some(old) if !b.has(key) => Ok(old),
            _ => b.count(key).map(|n| n as u32),
        };
        let quantity = |key: &str, old: Option<f64>| match old {
            Some(old) if !b.has(key) => Ok(old),
            _ => b.number(key),
        };
        let old = base.as_ref();
        let nodes = count("nodes", old.map(|c| c.nodes))?;
        if links[1].is_none() && nodes == 1 {
            links[1] = links[0];
        }
        let missing: Vec<&str> = nested_names
            .iter()
            .zip([links[0].is_none(), links[1].is_none(), links[2].is_none(), flops.is_empty()])
            .filter_map(|(n, m)| m.then_some(*n))
            .collect();
        let (Some(intra), Some(inter), Some(host), true) = (links[0], links[1], links[2], missing.is_empty())
        else {
            if !self.is_damaged(section.span) {
                let d = Diagnostic::error(
                    codes::MISSING_SETTING,
                    name.span,
                    format!(
                        "the cluster `{}` needs {}",
                        name.text,
                        alternatives(missing).replace(" or ", " and ")
                    ),
                )
                .label("incomplete")
                .help("`cluster name from preset { .. }` takes the rest from a preset");
                self.push(d);
            }
            return Err(Failed);
        };
        Ok(Cluster {
            name: name.text.clone(),
            nodes,
            gpus_per_node: count("gpus_per_node", old.map(|c| c.gpus_per_node))?,
            intra,
            inter,
            host,
            host_sync: quantity("host_sync", old.map(|c| c.host_sync))?,
            copy_engines: count("copy_engines", old.map(|c| c.copy_engines))?,
            nics: count("nics", old.map(|c| c.nics))?,
            sms: count("sms", old.map(|c| c.sms))?,
            comm_sms: count("comm_sms", old.map(|c| c.comm_sms))?,
            flops,
            memory: quantity("memory", old.map(|c| c.memory as f64))? as u64,
            memory_bandwidth: quantity("memory_bandwidth", old.map(|c| c.memory_bandwidth))?,
            span: Some(section.span),
        })
    }

    fn link(&mut self, entry: &'a Entry) -> Result<Link, Failed> {
        let b = self.settings(&entry.key.text, entry.key.span, entry.settings.as_ref(), settings::LINK)?;
        Ok(Link { bandwidth: b.number("bandwidth")?, latency: b.number("latency")? })
    }
}

/// The settings of a cluster that starts from a preset: the same, all optional.
fn cluster_overrides() -> &'static [Param] {
    static OVERRIDES: std::sync::LazyLock<Vec<Param>> = std::sync::LazyLock::new(|| {
        settings::CLUSTER.iter().map(|p| Param { need: Need::Optional, ..*p }).collect()
    });
    &OVERRIDES
}
