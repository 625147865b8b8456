//! Passes that go wrong on purpose, so that what happens then can be tested through the binary: they are not listed,
//! and no strategy uses them.

use super::{Options, Pass, PassError, Statistics};
use crate::ir::Module;

/// Found by their names only.
pub(crate) static DEBUG_PASSES: &[Pass] = &[
    Pass {
        name: "debug-panic",
        summary: "Panics after it has removed the last operation of every function.",
        options: &[("message", "as asked", "what the panic says")],
        statistics: &[],
        run: panic,
    },
    Pass {
        name: "debug-invalidate",
        summary: "Leaves a module that does not verify: every function in reverse order.",
        options: &[],
        statistics: &[("reversed", "functions reversed")],
        run: invalidate,
    },
    Pass {
        name: "debug-fail",
        summary: "Fails without a change.",
        options: &[],
        statistics: &[],
        run: |_, _, _| Err(PassError::new("as asked")),
    },
];

fn panic(module: &mut Module, options: &Options, _: &mut Statistics) -> Result<(), PassError> {
    for func in &mut module.funcs {
        func.body.pop();
    }
    panic!("{}", options.get("message").map_or("as asked", String::as_str))
}

fn invalidate(module: &mut Module, _: &Options, statistics: &mut Statistics) -> Result<(), PassError> {
    for func in &mut module.funcs {
        func.body.reverse();
        statistics.count("reversed");
    }
    Ok(())
}
