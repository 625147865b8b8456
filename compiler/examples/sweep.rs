use fs_compiler::{CompileOptions, Strategy, compile_with};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let k: Option<u32> = args.get(1).and_then(|s| s.parse().ok());
    let m: Option<u32> = args.get(2).and_then(|s| s.parse().ok());
    let only = args.get(3).cloned();
    for model in ["dlrm", "movielens", "ranking"] {
        let loaded = fs_dsl::load(std::path::Path::new(&format!("examples/{model}.fs")));
        let program = loaded.program.unwrap();
        for preset in fs_dsl::cluster::PRESETS {
            let cluster = fs_dsl::cluster::preset(preset).unwrap();
            for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
                if only.as_ref().is_some_and(|o| *o != format!("{strategy:?}").to_lowercase()) { continue }
                let o = CompileOptions { strategy, ranks: None, cluster: Some(cluster.clone()), lookahead: k, microbatches: m, in_flight: None };
                let t = std::time::Instant::now();
                match compile_with(&program, &o) {
                    Ok(c) => {
                        let p = c.schedule.prediction.as_ref().unwrap();
                        let b = p.resource_bound.max(p.recurrence_bound);
                        let deps: usize = c.schedule.train.ops.iter().map(|o| o.deps.len()).sum();
                        println!("{model:10} {preset:12} {strategy:?} n={} deps={deps} step {:.1}us resource {:.1} recurrence {:.1} ratio {:.3} inflight {} mem {:.3}G {:.0}ms", c.schedule.train.ops.len(), p.step*1e6, p.resource_bound*1e6, p.recurrence_bound*1e6, p.step/b, c.schedule.train.in_flight, p.memory as f64/1e9, t.elapsed().as_secs_f64()*1e3);
                        for l in &p.limits { if !l.contains("data file") {println!("     {l}");} }
                    }
                    Err(e) => println!("{model} {preset} {strategy:?}: {e}"),
                }
            }
        }
    }
}
