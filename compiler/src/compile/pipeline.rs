//! Which passes run, with which options: from what a model, a policy and whoever compiles say.

use std::collections::BTreeMap;

use super::CompileError;
use crate::distribution::{At, Lookahead, PerTable, TableOptions};
use crate::ir::Module;
use crate::ir::attr::{boolean, int};
use crate::sched::policy::Policy;

/// What decides which passes run, beside the model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PipelineOptions {
    /// Rows of different reuse distance travel apart, if there is a lookahead.
    pub tells_rows_apart: bool,
    /// Sums of dense gradients are cut into buckets.
    pub buckets_gradients: bool,
    /// Each row once per rank.
    pub unique_rows: bool,
    /// Reuse distances (in windows) that are told apart; 0: rows travel together.
    pub lookahead: u32,
    /// Windows of a batch by which they are; `None`: each microbatch is one.
    pub windows: Option<u32>,
    /// Parts of a batch; `None`: as the model's settings say.
    pub microbatches: Option<u32>,
    /// Ranks to place tables on.
    pub ranks: u32,
    /// Ranks of a node; `None`: all are of one.
    pub node: Option<u32>,
    /// Bytes of a rank for tables and their state.
    pub memory: Option<u64>,
    /// Bytes that a transfer could have moved in its latency.
    pub latency_bytes: Option<u64>,
    /// Bytes that memory moves in the time of a launch: neighbours that move less are fused.
    pub launch_bytes: Option<u64>,
    /// Whether samples go to the ranks that have least to do; `None`: as the model's settings say.
    pub balance: Option<bool>,
    /// Where they go; `None`: before ids are looked at.
    pub balance_at: Option<At>,
    /// Bytes of dense gradients that are summed at once; `None`: an eighth of all, if that is worth a transfer.
    pub bucket_bytes: Option<u64>,
    /// What holds for some tables instead.
    pub tables: TableOptions,
}

impl PipelineOptions {
    /// As an imported module's settings and a policy say.
    pub fn of(module: &Module, policy: &dyn Policy, ranks: u32) -> Result<Self, CompileError> {
        Ok(Self {
            tells_rows_apart: policy.tells_rows_apart(),
            buckets_gradients: policy.buckets_gradients(),
            unique_rows: boolean(&module.attrs, "unique_rows")?,
            lookahead: int(&module.attrs, "lookahead")?,
            windows: None,
            microbatches: None,
            ranks,
            node: None,
            memory: None,
            latency_bytes: None,
            launch_bytes: None,
            balance: None,
            balance_at: None,
            bucket_bytes: None,
            tables: TableOptions::default(),
        })
    }

    /// Telling apart so many reuse distances.
    #[must_use]
    pub fn lookahead(mut self, lookahead: u32) -> Self {
        self.lookahead = lookahead;
        self
    }

    /// By so many windows of a batch.
    #[must_use]
    pub fn windows(mut self, windows: impl Into<Option<u32>>) -> Self {
        self.windows = windows.into();
        self
    }

    /// In so many parts of a batch.
    #[must_use]
    pub fn microbatches(mut self, microbatches: impl Into<Option<u32>>) -> Self {
        self.microbatches = microbatches.into();
        self
    }

    /// For ranks of which so many are of a node.
    #[must_use]
    pub fn node(mut self, node: impl Into<Option<u32>>) -> Self {
        self.node = node.into();
        self
    }

    /// For ranks with so many bytes for tables.
    #[must_use]
    pub fn memory(mut self, memory: impl Into<Option<u64>>) -> Self {
        self.memory = memory.into();
        self
    }

    /// With transfers that could move so many bytes in their latency.
    #[must_use]
    pub fn latency_bytes(mut self, latency_bytes: impl Into<Option<u64>>) -> Self {
        self.latency_bytes = latency_bytes.into();
        self
    }

    /// For launches in which memory could move so many bytes.
    #[must_use]
    pub fn launch_bytes(mut self, launch_bytes: impl Into<Option<u64>>) -> Self {
        self.launch_bytes = launch_bytes.into();
        self
    }

    /// With samples given to the ranks that have least to do, or not.
    #[must_use]
    pub fn balance(mut self, on: impl Into<Option<bool>>) -> Self {
        self.balance = on.into();
        self
    }

    /// With samples that move there.
    #[must_use]
    pub fn balance_at(mut self, at: impl Into<Option<At>>) -> Self {
        self.balance_at = at.into();
        self
    }

    /// With so many bytes of dense gradients summed at once.
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.bucket_bytes = bytes.into();
        self
    }

    /// With other choices for some tables.
    #[must_use]
    pub fn tables(mut self, tables: TableOptions) -> Self {
        self.tables = tables;
        self
    }
}

/// The passes to run on an imported module, up to and without the order of operations.
pub fn pipeline(plan: &PipelineOptions) -> String {
    let optional = |name: &str, value: Option<u64>| value.map_or(String::new(), |v| format!(",{name}={v}"));
    let tables = &plan.tables;
    let sharding = format!(
        "ranks={}{}{}{}{}{}{}",
        plan.ranks,
        optional("node", plan.node.map(u64::from)),
        optional("memory", plan.memory),
        optional("latency_bytes", plan.latency_bytes),
        per_table(",sharding=", &PerTable { others: None, named: tables.sharding.clone() }),
        per_table(",placement=", &PerTable { others: None, named: tables.placement.clone() }),
        per_table(",hot=", &PerTable { others: None, named: tables.hot.clone() })
    );
    let microbatches = plan.microbatches.map_or(String::new(), |m| format!("{{microbatches={m}}}"));
    let lookahead = if plan.tells_rows_apart {
        PerTable {
            others: Some(plan.lookahead).filter(|k| *k > 0).map(|k| Lookahead(Some(k))),
            named: tables.lookahead.clone(),
        }
    } else {
        PerTable::default()
    };
    let windows = if plan.tells_rows_apart {
        PerTable { others: plan.windows, named: tables.windows.clone() }
    } else {
        PerTable::default()
    };
    let unique = PerTable { others: Some(plan.unique_rows), named: tables.unique.clone() };
    let relay = PerTable { others: None, named: tables.relay.clone() };
    let exchanges = format!(
        "{}{}{}{}",
        per_table("unique=", &unique),
        per_table(",lookahead=", &lookahead),
        per_table(",windows=", &windows),
        per_table(",relay=", &relay)
    );
    let fuse = plan.launch_bytes.filter(|bytes| *bytes > 0).map_or(String::new(), |bytes| {
        format!("fuse-elementwise{{launch_bytes={bytes},ranks={}}},", plan.ranks)
    });
    let braced = |options: Vec<String>| {
        let said: Vec<String> = options.into_iter().filter(|option| !option.is_empty()).collect();
        if said.is_empty() { String::new() } else { format!("{{{}}}", said.join(",")) }
    };
    let fold = |named: BTreeMap<String, bool>| per_table("fold=", &PerTable { others: None, named });
    // What is said of all anyway keeps nothing apart.
    let folded = plan.balance_at == Some(At::Folded);
    let unlike = tables.fold.iter().filter(|(_, on)| **on != folded);
    let unlike = unlike.map(|(name, on)| (name.clone(), *on));
    // Nobody lists rows for others of which all ranks have some.
    let hot = tables.hot.iter().filter(|(name, n)| folded && **n > 0 && !tables.fold.contains_key(*name));
    let unlike = fold(unlike.chain(hot.map(|(name, _)| (name.clone(), false))).collect());
    let groups = per_table("groups=", &PerTable { others: None, named: tables.groups.clone() });
    let groups = braced(vec![groups, unlike]);
    let buckets = match (plan.bucket_bytes, plan.latency_bytes) {
        _ if !plan.buckets_gradients => String::new(),
        (Some(bytes), _) => format!(",bucket-gradients{{bytes={bytes}}}"),
        (None, None) => ",bucket-gradients".into(),
        // A bucket is worth its transfer if sending it takes much longer than starting to.
        (None, Some(bytes)) => format!(",bucket-gradients{{least={}}}", bytes.saturating_mul(8)),
    };
    let samples = plan.balance.map(|on| if on { "samples=on" } else { "samples=off" }.to_owned());
    let at = plan.balance_at.map(|at| format!("at={at}"));
    let balance = braced(samples.into_iter().chain(at).chain([fold(tables.fold.clone())]).collect());
    format!(
        "canonicalize,plan-sharding{{{sharding}}},mixed-precision,make-evaluation,differentiate,reference,microbatch{microbatches},lower-exchanges{{{exchanges}}},dce,accumulate,{fuse}group-collectives{groups},fuse-collectives{buckets},balance{balance}"
    )
}

/// An option that says something for tables, if it does.
fn per_table<T: std::fmt::Display>(name: &str, values: &PerTable<T>) -> String {
    if values.is_empty() { String::new() } else { format!("{name}{values}") }
}
