#!/usr/bin/env python3
"""What PyTorch makes of the cases that `cargo bench -p fs-kernels --bench device` times, on the same GPU.

    gpu_rates.py [--device cuda|cpu] [--json FILE]

Shapes are those of kernels/benches/device; on the CPU they are small, and what is printed is no figure. Work is counted alike: useful
bytes, each read once and each result written once, or operations (attention: 2 L^2 d a head forward and 5 L^2 d backward, which any way
must do, however many it does: plain products make the half that the mask leaves out, too). Medians of seven blocks of 20 ms.

Softmax attention is PyTorch's own. SiLU attention, for which it has none, is products with a mask: of all sequences at once, padded; of
one after the other; by FBGEMM's jagged operators and by its HSTU kernels, where these are installed. What does not agree with the first is not timed.
"""

import argparse
import inspect
import json
import statistics
import time
from pathlib import Path

import torch

DIM = 128
# Ways whose releases may mean something else by their arguments.
OTHERS = ["FBGEMM's HSTU kernels"]


class Meter:
    def __init__(self, device):
        self.device, self.small, self.found, self.copy = device, device == "cpu", [], None
        self.notes = []

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call):
        def block(rounds):
            self.wait()
            began = time.perf_counter()
            for _ in range(rounds):
                call()
            self.wait()
            return (time.perf_counter() - began) / rounds
        block(1)
        if self.small:
            return block(1)
        rounds = max(3, min(2000, int(0.02 / block(3))))
        return statistics.median(block(rounds) for _ in range(7))

    def note(self, text):
        self.notes.append(text)

    def case(self, what, dtype, unit, work, call):
        took = self.seconds(call)
        share = work / took / self.copy if unit == "bytes" and self.copy else None
        self.found.append({"what": what, "activations": {torch.float32: "float", torch.bfloat16: "bf16"}[dtype], "seconds": took,
                           "unit": unit, "work": work, "share_of_copy": share})
        return took


def rows(meter, dtype):
    device, size = meter.device, torch.finfo(dtype).bits // 8
    table_rows, n = (1 << 10, 1 << 8) if meter.small else (1 << 22, 1 << 20)
    table = torch.full((table_rows, DIM), 0.01, device=device)
    for name in ["uniform", "Zipf"]:
        u = torch.rand(n, device=device, dtype=torch.float64)
        drawn = (u * table_rows).long() if name == "uniform" else (torch.exp(u * torch.log(torch.tensor(table_rows + 1.0, dtype=torch.float64, device=device))).long() - 1)
        drawn.clamp_(0, table_rows - 1)
        unique, inverse = torch.unique(drawn, return_inverse=True)
        count = unique.numel()
        for what, ids in [("as drawn", drawn), ("unique, ascending", unique)]:
            out = torch.empty(ids.numel(), DIM, device=device)
            if dtype == torch.float32:
                meter.case(f"gather, {name}, {what}", dtype, "bytes", ids.numel() * (2 * 4 * DIM + 8),
                           lambda ids=ids, out=out: torch.index_select(table, 0, ids, out=out))
        few, many = torch.full((count, DIM), 0.01, device=device, dtype=dtype), torch.full((n, DIM), 0.01, device=device, dtype=dtype)
        meter.case(f"expand, {name}", dtype, "bytes", n * (size * DIM + 8) + count * size * DIM, lambda: torch.index_select(few, 0, inverse, out=many))
        if dtype != torch.float32:
            continue
        sums = torch.zeros(count, DIM, device=device)
        gradients = torch.full((n, DIM), 0.01, device=device)
        meter.case(f"segment sum, {name}", torch.float32, "bytes", n * (4 * DIM + 8) + count * 4 * DIM,
                   lambda: sums.zero_().index_add_(0, inverse, gradients))
        meter.case(f"unique and inverse, {name}", torch.float32, "items", n, lambda: torch.unique(drawn, return_inverse=True))


def attention(meter, dtype):
    sequences, length, heads, dim = (2, 70, 2, 64) if meter.small else (16, 2048, 8, 64)
    shape = f"{sequences} x {length} tokens, {heads} heads of {dim}"
    q, k, v = (torch.randn(sequences, heads, length, dim, device=meter.device, dtype=dtype, requires_grad=True) for _ in range(3))
    pairs = sequences * heads * length * length * dim
    run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    both_ways(meter, "softmax attention", "", shape, pairs, (q, k, v), run)
    silu_attention(meter, dtype, (sequences, length, heads, dim), shape, pairs)


def both_ways(meter, what, how, shape, pairs, operands, run):
    dtype = operands[0].dtype
    with torch.no_grad():
        meter.case(f"{what}, forward, {shape}{how}", dtype, "operations", 2 * pairs, run)
    y = run()
    gradient = torch.ones_like(y)
    meter.case(f"{what}, backward (5 L^2 d), {shape}{how}", dtype, "operations", 5 * pairs,
               lambda: torch.autograd.grad(y, operands, gradient, retain_graph=True))


def silu_attention(meter, dtype, sizes, shape, pairs):
    """A weight for each position that is not later: silu of the product with its key, divided by the sequence's own length."""
    sequences, length, heads, dim = sizes
    lengths = [length] * sequences
    jagged = [torch.randn(sum(lengths), heads, dim, device=meter.device, dtype=dtype, requires_grad=True) for _ in range(3)]
    offsets = torch.tensor([0, *lengths], device=meter.device).cumsum(0)
    own = torch.tensor(lengths, device=meter.device, dtype=dtype)
    causal = torch.ones(length, length, device=meter.device, dtype=torch.bool).tril()

    def products(q, k, v, mask, lengths):
        return (torch.nn.functional.silu(q @ k.transpose(-1, -2)) * mask / lengths) @ v

    def padded(q, k, v):
        # All are as long, so that nothing is filled up: the best case of this.
        cut = lambda x: x.view(sequences, length, heads, dim).transpose(1, 2)
        return products(cut(q), cut(k), cut(v), causal, own[:, None, None, None]).transpose(1, 2).flatten(0, 1)

    def one_by_one(q, k, v):
        cut = [x.transpose(0, 1).split(lengths, dim=1) for x in (q, k, v)]
        return torch.cat([products(*one, causal[:n, :n], n) for *one, n in zip(*cut, lengths)], dim=1).transpose(0, 1)

    ways = {"products, padded": padded, "products, one sequence after the other": one_by_one}
    ways.update(fbgemm(meter, (sequences, length, heads, dim), offsets, own, causal, products))
    with torch.no_grad():
        expected = padded(*jagged).float()
    for how, way in ways.items():
        try:
            with torch.no_grad():
                off = (way(*jagged).float() - expected).norm() / expected.norm()
            agrees = bool(off <= (1e-5 if dtype == torch.float32 else 2e-2))
            if agrees:
                both_ways(meter, "SiLU attention", f", {how}", shape, pairs, jagged, lambda way=way: way(*jagged))
                continue
            wrong = f"off by {off:.1e}, so it is not timed"
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            agrees, wrong = None, f"not done ({str(error).strip().splitlines()[0][:120]})"
        if agrees is False and how not in OTHERS:
            raise SystemExit(f"error: SiLU attention by {how}: {wrong}")
        meter.note(f"SiLU attention by {how} in {dtype}: {wrong}")


def fbgemm(meter, sizes, offsets, own, causal, products):
    """What FBGEMM has for it; it may have been left out when it was installed."""
    sequences, length, heads, dim = sizes
    ways = {}
    try:
        import fbgemm_gpu  # noqa: F401  (registers torch.ops.fbgemm)
    except (ImportError, OSError) as error:
        meter.note(f"SiLU attention by FBGEMM: fbgemm_gpu is not installed ({error})")
        return ways

    def operators(q, k, v):
        # It pads rows, so heads stand side by side in them.
        cut = lambda x: torch.ops.fbgemm.jagged_to_padded_dense(x.flatten(1), [offsets], [length]).view(sequences, length, heads, dim).transpose(1, 2)
        y = products(cut(q), cut(k), cut(v), causal, own[:, None, None, None])
        return torch.ops.fbgemm.dense_to_jagged(y.transpose(1, 2).flatten(2), [offsets], q.shape[0])[0].view_as(q)

    ways["FBGEMM's jagged operators"] = operators
    try:
        try:
            from fbgemm_gpu.experimental.hstu import hstu_attn_varlen_func
        except ImportError:
            from hstu import hstu_attn_varlen_func
    except (ImportError, OSError) as error:
        meter.note(f"SiLU attention by FBGEMM's HSTU kernels: not installed ({error})")
        return ways
    # Names and places of arguments differ between its releases.
    takes, short = inspect.signature(hstu_attn_varlen_func).parameters, offsets.int()
    known = {"cu_seqlens_q": short, "cu_seqlens_k": short, "seq_offsets_q": short, "seq_offsets_k": short, "seqused_q": None, "seqused_k": None,
             "max_seqlen_q": length, "max_seqlen_k": length, "num_contexts": None, "num_targets": None, "window_size": (-1, 0)}
    more = {name: value for name, value in known.items() if name in takes}
    ways[OTHERS[0]] = lambda q, k, v: hstu_attn_varlen_func(q, k, v, **more)
    return ways


def permutation(meter, dtype):
    size = torch.finfo(dtype).bits // 8
    for ranks in [2] if meter.small else [32, 64, 128, 256, 512]:
        n = ranks * 2048
        order = (torch.randperm(n // 64)[:, None] * 64 + torch.arange(64)[None]).flatten().to(meter.device)
        x, y = torch.full((n, DIM), 0.01, device=meter.device, dtype=dtype), torch.empty(n, DIM, device=meter.device, dtype=dtype)
        work = 2 * n * DIM * size + 8 * n
        meter.case(f"dispatch, {ranks} ranks' rows", dtype, "bytes", work, lambda: y.index_copy_(0, order, x))
        meter.case(f"combine, {ranks} ranks' rows", dtype, "bytes", work, lambda: torch.index_select(x, 0, order, out=y))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here; --device cpu runs all of it, small")
    torch.backends.cuda.matmul.allow_tf32 = False
    meter = Meter(given.device)
    a, b = (torch.full((1 << 16 if meter.small else 1 << 28,), 0.01, device=given.device) for _ in range(2))
    took = meter.case("copy on the device, 1 GiB", torch.float32, "bytes", 8 * a.numel(), lambda: b.copy_(a))
    meter.copy = 8 * a.numel() / took
    side = 64 if meter.small else 8192
    for dtype in [torch.float32, torch.bfloat16]:
        x, y = (torch.full((side, side), 0.01, device=given.device, dtype=dtype) for _ in range(2))
        meter.case(f"product of {side} x {side}", dtype, "operations", 2 * side**3, lambda x=x, y=y: x @ y)
        rows(meter, dtype)
        attention(meter, dtype)
        permutation(meter, dtype)
    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    print(f"PyTorch {torch.__version__}, {name}" + (": what follows has run, and says nothing of a device" if meter.small else "") + "\n")
    print("| activations | what | ms | rate | share of the copy |\n|---|---|---:|---:|---:|")
    for row in meter.found:
        unit = {"bytes": ("GB/s", 1e9), "operations": ("TFLOP/s", 1e12), "items": ("M/s", 1e6)}[row["unit"]]
        share = "" if row["share_of_copy"] is None else f"{row['share_of_copy']:.2f}"
        print(f"| {row['activations']} | {row['what']} | {row['seconds'] * 1e3:.4f} | {row['work'] / row['seconds'] / unit[1]:.1f} {unit[0]} | {share} |")
    print("".join(f"\n{note}" for note in meter.notes))
    if given.json:
        given.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "small": meter.small, "notes": meter.notes, "figures": meter.found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
