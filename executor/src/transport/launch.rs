//! Who has started this process, and how many with it.

use std::env;

/// What a launcher has told this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    /// The launcher.
    pub by: &'static str,
    /// How many processes it has started.
    pub processes: usize,
    /// The number of this one.
    pub process: usize,
}

/// Launchers with the variables in which they say how many processes there are and which this is.
const LAUNCHERS: [(&str, &str, &str); 5] = [
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    // `salloc mpirun` sets the first ones too: what is nearer counts.
    ("mpiexec", "PMI_SIZE", "PMI_RANK"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("a launcher with PMIx", "PMIX_SIZE", "PMIX_RANK"),
];

/// Whether a launcher of MPI has started this process.
pub fn launched() -> Option<Launched> {
    find(|name| env::var(name).ok())
}

fn find(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    let number = |name: &str| variable(name).and_then(|text| text.trim().parse::<usize>().ok());
    LAUNCHERS.iter().find_map(|(by, size, rank)| {
        let (processes, process) = (number(size)?, number(rank)?);
        (process < processes).then_some(Launched { by, processes, process })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_what_they_set() {
        let of = |variables: &[(&str, &str)]| {
            find(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[]), None);
        let open_mpi = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "3"), ("SLURM_PROCID", "0")];
        assert_eq!(of(&open_mpi), Some(Launched { by: "mpirun", processes: 4, process: 3 }));
        let slurm = [("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1")];
        assert_eq!(of(&slurm), Some(Launched { by: "srun", processes: 2, process: 1 }));
        // A shell within an allocation is no step.
        assert_eq!(of(&[("SLURM_NTASKS", "2"), ("SLURM_PROCID", "0")]), None);
        assert_eq!(of(&[("PMI_SIZE", "2"), ("PMI_RANK", "7")]), None);
        assert_eq!(of(&[("PMI_SIZE", "many"), ("PMI_RANK", "0")]), None);
    }
}
