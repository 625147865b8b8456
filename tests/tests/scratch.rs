use fs_tests::schedules::*;
use fs_schedule::*;
#[test]
fn go() {
    let sh = vec![
        vec![Sharding::RowWise], vec![Sharding::TableWise{rank:1}], vec![Sharding::ColumnWise{ranks:vec![0,1]}], vec![Sharding::DataParallel],
        vec![Sharding::RowWise, Sharding::DataParallel, Sharding::ColumnWise{ranks:vec![1,0]}],
    ];
    for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] { for k in [None, Some(1), Some(2), Some(3)] { for m in [1,2,4] { for t in &sh { for fused in [false,true] {
        let plan = Plan{fused, ..Plan::new(strategy,k,m).tables(t.clone())};
        let t0=std::time::Instant::now();
        let s = build(&plan);
        let t1=t0.elapsed();
        let v = verify::verify(&s);
        println!("{plan:?} {} ops {} deps {t1:?} {:?}", s.train.ops.len(), s.train.ops.iter().map(|o|o.deps.len()).sum::<usize>(), v.len());
        for x in v.iter().take(5) { println!("   {x}"); }
    }}}}}
}
