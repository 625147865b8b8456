use fs_compiler::{CompileOptions, Strategy, compile_with};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let loaded = fs_dsl::load(std::path::Path::new(&args[1]));
    let program = loaded.program.unwrap();
    let cluster = fs_dsl::cluster::preset(&args[2]).unwrap();
    let o = CompileOptions { strategy: Strategy::Pec, ranks: None, cluster: Some(cluster), lookahead: args.get(3).and_then(|s| s.parse().ok()), microbatches: args.get(4).and_then(|s| s.parse().ok()), in_flight: None };
    let c = compile_with(&program, &o).unwrap();
    let p = c.schedule.prediction.as_ref().unwrap();
    println!("step {} cycle:", p.step);
    for d in &p.cycle { let o = &c.schedule.train.ops[d.op as usize]; println!("   {} {} +{}", o.name, o.time, d.distance); }
    let mut end = std::collections::BTreeMap::new();
    for (i, o) in c.schedule.train.ops.iter().enumerate() {
        let e = end.entry(o.engine).or_insert(0u64);
        let gap = o.start.saturating_sub(*e);
        *e = o.start + o.time;
        println!("{i:4} {:9} {:9} {:7} st {:2} {:?} gap {gap} {} prio {} chunk {:?} {:?}", o.start, o.start + o.time, o.time, o.stage, o.engine, o.name, o.priority, o.chunk, o.deps.iter().map(|d| (d.op, d.distance)).collect::<Vec<_>>());
    }
}
