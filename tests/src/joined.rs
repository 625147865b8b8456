//! What one launch starts, and schedules in which it starts one operation only.

use fs_schedule::verify::verify;
use fs_schedule::{Op, Program, Schedule};

/// Operations that one launch starts, where there are several.
pub fn groups(program: &Program) -> impl Iterator<Item = &[Op]> {
    program.ops.chunk_by(|_, op| op.joined).filter(|group| group.len() > 1)
}

/// Each operation by itself.
pub fn apart(schedule: &Schedule) -> Schedule {
    let mut schedule = schedule.clone();
    let programs = std::iter::once(&mut schedule.train).chain(&mut schedule.evaluation);
    for op in programs.flat_map(|program| &mut program.ops) {
        op.joined = false;
    }
    schedule.seal();
    let violations = verify(&schedule);
    assert!(violations.is_empty(), "{violations:?}");
    schedule
}
