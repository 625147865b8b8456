use fs_compiler::emit::{Plan, pipeline, Strategy};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let loaded = fs_dsl::load(std::path::Path::new(&args[1]));
    let mut module = fs_compiler::import::import(&loaded.program.unwrap()).unwrap();
    let plan = Plan { strategy: Strategy::Pec, unique_rows: true, lookahead: 2, microbatches: Some(2), ranks: 8, memory: None, latency_bytes: None };
    let stages = fs_compiler::passes::manager::parse_pipeline(&pipeline(&plan)).unwrap();
    fs_compiler::passes::manager::run(&mut module, &stages, Default::default(), &mut Default::default()).unwrap();
    println!("{module}");
}
