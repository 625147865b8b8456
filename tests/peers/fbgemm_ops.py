"""Times FBGEMM's and PyTorch's CPU operators for what `cargo bench -p fs-kernels --bench memory` times. One thread.

Usage: PYTHON tests/peers/fbgemm_ops.py [rows|ids]   PYTHON: of the environment made by install_torchrec.sh
Needs 6 GiB. Rates count useful bytes as the benchmark does; medians of 7 calls (21 for ids).
"""

import statistics
import sys
import time

import fbgemm_gpu  # noqa: F401  (registers torch.ops.fbgemm)
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

TABLE, MOVED = 1 << 29, 1 << 25


def draw(kind, n, rows):
    generator = torch.Generator().manual_seed(1)
    if kind == "uniform":
        return torch.randint(rows, (n,), generator=generator)
    u = torch.rand(n, generator=generator, dtype=torch.float64)
    rank = torch.exp(u * torch.log(torch.tensor(rows + 1.0, dtype=torch.float64))).long() - 1
    return (rank * 0x9E3779B1) % rows


def median(call, rounds):
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def rows():
    a, b = torch.ones(MOVED * 2), torch.zeros(MOVED * 2)
    copy = 2 * 4 * a.numel() / median(lambda: b.copy_(a), 7) / 1e9
    print(f"copy of 256 MiB {copy:.1f} GB/s")
    for dim in (64, 128, 256):
        for kind in ("uniform", "zipf"):
            table_rows, n = TABLE // dim, MOVED // dim
            ids = draw(kind, n, table_rows)
            unique, inverse = torch.unique(ids, return_inverse=True)
            u, row = len(unique), 4 * dim

            def show(name, call, work, rounds=7):
                rate = work / median(call, rounds) / 1e9
                print(f"{kind:<8} {dim:>4} {name:<52} {rate:>6.1f} {rate / copy:>6.2f}", flush=True)

            table = torch.full((table_rows, dim), 0.5)
            out = torch.zeros(n, dim)
            show("torch.index_select, as drawn", lambda: torch.index_select(table, 0, ids, out=out), 2 * n * row)
            out = torch.zeros(u, dim)
            show("torch.index_select, unique ascending", lambda: torch.index_select(table, 0, unique, out=out), 2 * u * row)
            grads, sums = torch.ones(n, dim), torch.zeros(u, dim)
            show("torch.index_add_ (segment sum)", lambda: sums.zero_().index_add_(0, inverse, grads), (n + u) * row)
            del table, sums
            tbe = SplitTableBatchedEmbeddingBagsCodegen(
                [(table_rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
                optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
                learning_rate=1e-6,
                pooling_mode=PoolingMode.SUM,
                weights_precision=SparseType.FP32,
                output_dtype=SparseType.FP32,
            )
            offsets = torch.arange(u + 1)
            show("TBE forward, unique ascending, bags of one", lambda: tbe(unique, offsets), 2 * u * row)
            gradient = torch.ones(u, dim)
            backward = []
            for _ in range(8):
                y = tbe(unique, offsets)
                start = time.perf_counter()
                y.backward(gradient)
                backward.append(time.perf_counter() - start)
            rate = u * (3 * row + 8) / statistics.median(backward[1:]) / 1e9
            print(f"{kind:<8} {dim:>4} {'TBE backward with row-wise Adagrad, ascending':<52} {rate:>6.1f} {rate / copy:>6.2f}", flush=True)
            del tbe, y


def ids():
    for table_rows, n in ((1 << 20, 20_000), (1 << 23, 20_000), (1 << 23, 400_000), (1 << 27, 20_000), (1 << 27, 400_000)):
        for kind in ("uniform", "zipf"):
            x = draw(kind, n, table_rows)
            own = torch.unique(x)
            other = torch.where(torch.arange(len(own)) % 2 == 0, own, own ^ 1)
            lengths = torch.tensor([n], dtype=torch.int64)
            block = torch.tensor([-(-table_rows // 4)])
            offsets, hash_size = torch.tensor([0, n]), torch.tensor([0, table_rows])
            cases = {
                "torch.unique, sorted, with inverse": (lambda: torch.unique(x, return_inverse=True), n),
                "fbgemm.jagged_unique_indices": (
                    lambda: torch.ops.fbgemm.jagged_unique_indices(hash_size, torch.tensor([0, 1]), offsets, x), n),
                "fbgemm.get_unique_indices_with_inverse": (
                    lambda: torch.ops.fbgemm.get_unique_indices_with_inverse(x, table_rows, False, True), n),
                "fbgemm.block_bucketize_sparse_features, 4 owners": (
                    lambda: torch.ops.fbgemm.block_bucketize_sparse_features(lengths, x, False, True, block, 4), n),
                "torch.isin (overlap)": (lambda: torch.isin(own, other, assume_unique=True), len(own)),
            }
            for name, (call, work) in cases.items():
                try:
                    result = f"{median(call, 21) / work * 1e9:9.2f}"
                except (NotImplementedError, RuntimeError) as error:
                    result = f"none on the CPU ({str(error).splitlines()[0][:60]})"
                print(f"{kind:<8} {table_rows:>9} {n:>8} {name:<52} {result}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = sys.argv[1:] or ["rows", "ids"]
    if "rows" in asked:
        rows()
    if "ids" in asked:
        ids()
