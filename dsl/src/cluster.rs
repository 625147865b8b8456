//! Machines that come with the compiler.

use crate::checked::{Cluster, DType, Link};

/// Names of the presets.
pub const PRESETS: &[&str] = &["local", "dgx_h100", "h100x256", "h200", "gb200_nvl72"];

const GB: f64 = 1e9;
const US: f64 = 1e-6;
const TFLOPS: f64 = 1e12;

/// The preset of a name.
///
/// From data sheets:
/// - H100 SXM (NVIDIA H100 data sheet and architecture white paper): 132 SMs, 80 GB, 3.35 TB/s, NVLink 900 GB/s
///   both directions together, 989 TFLOP/s bf16 and fp16 dense, 67 TFLOP/s fp32, PCIe 5.0 x16.
/// - DGX H100 data sheet: 8 GPUs, a 400 Gbit/s port per GPU.
/// - H200 data sheet: 141 GB, 4.8 TB/s, otherwise as H100.
/// - GB200 NVL72 data sheet, divided by its 72 GPUs: 186 GB, 8 TB/s, NVLink 1.8 TB/s both directions together,
///   2.5 PFLOP/s bf16 dense, 80 TFLOP/s fp32; NVLink-C2C 900 GB/s both directions together for two GPUs.
///
/// Not from data sheets, to be replaced by profiles: all latencies (orders of magnitude), copy engines,
/// `comm_sms`, the 148 SMs of a B200, the network of `gb200_nvl72` (400 Gbit/s per GPU is assumed; with one
/// node nothing uses it), and all of `local`, which describes no particular machine: a CPU with two ranks.
pub fn preset(name: &str) -> Option<Cluster> {
    let h100 = Cluster {
        name: name.to_owned(),
        nodes: 1,
        gpus_per_node: 8,
        intra: Link { bandwidth: 450.0 * GB, latency: 2.0 * US },
        inter: Link { bandwidth: 50.0 * GB, latency: 5.0 * US },
        host: Link { bandwidth: 64.0 * GB, latency: 5.0 * US },
        host_sync: 0.0,
        copy_engines: 3,
        nics: 1,
        sms: 132,
        comm_sms: 20,
        flops: vec![(DType::F32, 67.0 * TFLOPS), (DType::F16, 989.0 * TFLOPS), (DType::BF16, 989.0 * TFLOPS)],
        memory: 80_000_000_000,
        memory_bandwidth: 3350.0 * GB,
        span: None,
    };
    match name {
        "dgx_h100" => Some(h100),
        "h100x256" => Some(Cluster { nodes: 32, ..h100 }),
        "h200" => Some(Cluster { memory: 141_000_000_000, memory_bandwidth: 4800.0 * GB, ..h100 }),
        "gb200_nvl72" => Some(Cluster {
            gpus_per_node: 72,
            intra: Link { bandwidth: 900.0 * GB, latency: 2.0 * US },
            host: Link { bandwidth: 225.0 * GB, latency: 2.0 * US },
            sms: 148,
            flops: vec![
                (DType::F32, 80.0 * TFLOPS),
                (DType::F16, 2500.0 * TFLOPS),
                (DType::BF16, 2500.0 * TFLOPS),
            ],
            memory: 186_000_000_000,
            memory_bandwidth: 8000.0 * GB,
            ..h100
        }),
        "local" => Some(Cluster {
            gpus_per_node: 2,
            intra: Link { bandwidth: 10.0 * GB, latency: 1.0 * US },
            inter: Link { bandwidth: 1.25 * GB, latency: 50.0 * US },
            host: Link { bandwidth: 10.0 * GB, latency: 1.0 * US },
            copy_engines: 1,
            sms: 0,
            comm_sms: 0,
            flops: vec![(DType::F32, 0.05 * TFLOPS)],
            memory: 8_000_000_000,
            memory_bandwidth: 10.0 * GB,
            ..h100
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_preset() {
        for name in PRESETS {
            let c = preset(name).unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!(c.name, *name);
            assert!(c.flops.iter().all(|f| f.1 > 0.0) && c.memory > 0, "{name}");
        }
        assert_eq!(preset("h100x256").map(|c| c.nodes * c.gpus_per_node), Some(256));
        assert!(preset("h1000").is_none());
    }
}
