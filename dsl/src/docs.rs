//! Documentation generated from the tables that checking uses.

use crate::makers;

macro_rules! families {
    ($each:ident) => {
        [
            makers::INITS.iter().map($each!()).collect::<Vec<_>>(),
            makers::SPARSE.iter().map($each!()).collect(),
            makers::DENSE.iter().map($each!()).collect(),
            makers::LENGTHS.iter().map($each!()).collect(),
            makers::IDS.iter().map($each!()).collect(),
            makers::LABELS.iter().map($each!()).collect(),
            makers::BALANCE.iter().map($each!()).collect(),
        ]
    };
}

macro_rules! name {
    () => {
        |m| m.name
    };
}

/// Names of all constructors; some stand in several families.
pub(crate) fn maker_names() -> Vec<&'static str> {
    families!(name).concat()
}

/// Whether a name is a constructor's.
pub(crate) fn is_maker(name: &str) -> bool {
    maker_names().contains(&name)
}
