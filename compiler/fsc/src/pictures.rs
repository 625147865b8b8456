//! Pictures that stand still: `.svg` and `.dot` of `fsc viz`.

use std::path::PathBuf;

use fs_compiler::viz::{Timeline, dot, svg};

use super::failure::Failure;

/// Endings that this module draws.
pub(super) const ENDINGS: [&str; 2] = ["svg", "dot"];

/// The picture of one or several schedules, if the ending of its file is one of [`ENDINGS`].
pub(super) fn draw(
    ending: &str,
    drawn: &[(PathBuf, Timeline)],
    steps: Option<u32>,
) -> Option<Result<String, Failure>> {
    match ending {
        "svg" => {
            let timelines: Vec<Timeline> = drawn.iter().map(|(_, t)| t.clone()).collect();
            let options = svg::Options::default().names(names(drawn));
            let options = match steps {
                Some(steps) => options.steps(steps),
                None => options,
            };
            Some(Ok(svg::draw(&timelines, &options)))
        }
        "dot" => Some(match drawn {
            [(path, t)] => dot::draw(t).map_err(Failure::of(path)),
            _ => Err(Failure::usage(
                "a .dot file holds the graph of one schedule; write an .svg or .html file to compare two",
            )),
        }),
        _ => None,
    }
}

/// Names of files, where models and strategies do not tell schedules apart.
fn names(drawn: &[(PathBuf, Timeline)]) -> Vec<String> {
    let same = |(a, b): (&(PathBuf, Timeline), &(PathBuf, Timeline))| {
        (&a.1.model, a.1.strategy) == (&b.1.model, b.1.strategy)
    };
    if !drawn.iter().zip(drawn.iter().skip(1)).any(same) {
        return Vec::new();
    }
    drawn
        .iter()
        .map(|(p, _)| p.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into_owned()))
        .collect()
}
