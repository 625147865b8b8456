//! The catalogue says of every kernel what its source says.

use std::collections::{BTreeMap, BTreeSet};

use fs_kernels::cuda::Kernel;
use fs_kernels::cuda::catalogue::kernels;
use fs_kernels::cuda::sources::FAMILIES;

use super::device::{Device, PRECISIONS};

#[test]
fn it_has_the_arguments_that_the_compiler_sees() {
    for precision in PRECISIONS {
        let device = Device::new(precision);
        let found: BTreeMap<&str, &[String]> =
            device.emulation.kernels().filter(|(name, _)| !name.starts_with("selftest_")).collect();
        let mut listed = BTreeSet::new();
        for kernel in kernels() {
            assert!(listed.insert(kernel.name), "{} stands there twice", kernel.name);
            let types: Vec<String> = kernel.arguments.iter().map(|a| a.kind.name(precision)).collect();
            assert_eq!(Some(types.as_slice()), found.get(kernel.name).copied(), "{}", kernel.name);
            let source = FAMILIES.iter().find(|s| s.name == kernel.source).unwrap();
            assert!(source.kernels().any(|name| name == kernel.name), "{} in {}", kernel.name, kernel.source);
            // What does the work of several launches takes the words of so many arguments for each.
            let joined = found.get(kernel.joined_name().as_str()).copied();
            let all = [format!("joined {:02}", kernel.arguments.len())];
            assert_eq!(joined, kernel.joins().then_some(&all[..]), "{}", kernel.name);
        }
        let joined: Vec<String> = kernels().filter(|k| k.joins()).map(Kernel::joined_name).collect();
        listed.extend(joined.iter().map(String::as_str));
        let found: BTreeSet<&str> = found.into_keys().collect();
        assert_eq!(listed, found);
    }
}
