#!/usr/bin/env python3
"""The training step of examples/ranking.fs in plain PyTorch, on the GPU on which `fsx run` trains it.

    gpu_ranking.py [--device cuda|cpu] [--compute bf16|f32] [--steps 50] [--json FILE]

One process has the whole batch: nothing is exchanged, so this is what a model that fits one GPU costs without a scheduler. Tables are
updated by row-wise Adagrad on distinct rows, dense parameters by Adam; activations are in bf16 under autocast, tables and parameters
in f32, as in `precision { compute bf16 }`. Sequences are padded to the longest of the batch, as plain PyTorch does. Medians of
steps after ten. On the CPU it takes few steps, and what is printed is no figure.
"""

import argparse
import json
import math
import random
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, layer_norm, silu

ROWS, DIM, HEADS, BATCH, MOST, MEAN = 200_000, 64, 2, 32, 1024, 200


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.uvqk, self.o = nn.Linear(DIM, 4 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x, mask, lengths):
        u, v, q, k = silu(self.uvqk(self.n1(x))).chunk(4, dim=-1)
        cut = lambda t: t.unflatten(-1, (HEADS, DIM // HEADS)).transpose(1, 2)
        # A weight for each earlier position, divided by the sequence's own length.
        scores = cut(q) @ cut(k).transpose(-1, -2)
        weights = silu(scores) * mask / lengths
        a = (weights @ cut(v)).transpose(1, 2).flatten(-2)
        return x + self.o(layer_norm(a, (DIM,), self.n2.weight, self.n2.bias) * u)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(DIM, 1)

    def forward(self, x, mask, lengths):
        for block in self.blocks:
            x = block(x, mask, lengths)
        return self.head(x).squeeze(-1)


def batches(steps, device):
    """Lengths and ids by the laws of examples/ranking.fs, labels at random."""
    draw, sigma = random.Random(3), 1.0
    mu = math.log(MEAN) - sigma**2 / 2
    for _ in range(steps):
        lengths = [min(MOST, max(1, round(draw.lognormvariate(mu, sigma)))) for _ in range(BATCH)]
        longest = max(lengths)
        u = torch.rand(2, BATCH, longest, dtype=torch.float64)
        # P(rank > k) of a power law with exponent 1.05, cut off at the table's end.
        s = 0.05
        ids = ((1 - u * (1 - (ROWS + 1.0) ** -s)) ** (-1 / s) - 1).long().clamp_(0, ROWS - 1)
        own = torch.tensor(lengths)
        valid = torch.arange(longest)[None, :] < own[:, None]
        causal = torch.ones(longest, longest, dtype=torch.bool).tril()
        yield [x.to(device) for x in (ids, own, valid, (causal[None, None] & valid[:, None, None, :]), (torch.rand(BATCH, longest) < 0.3).float())]


class RowwiseAdagrad:
    """Of the distinct rows of a batch, one state a row."""

    def __init__(self, table, lr=0.05, eps=1e-8):
        self.table, self.lr, self.eps = table, lr, eps
        self.state = torch.zeros(table.shape[0], device=table.device)

    @torch.no_grad()
    def step(self, rows, gradients):
        self.state[rows] += gradients.pow(2).mean(dim=1)
        self.table[rows] -= self.lr * gradients / (self.state[rows].sqrt() + self.eps)[:, None]


def train(device, compute, steps):
    torch.manual_seed(1)
    model = Ranker().to(device)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    tables = [(torch.rand(ROWS, DIM, device=device) - 0.5) * 0.1 for _ in range(2)]
    optimizers = [RowwiseAdagrad(table) for table in tables]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times, losses = [], []
    for ids, lengths, valid, mask, labels in batches(steps, device):
        wait()
        began = time.perf_counter()
        looked_up = []
        for table, own in zip(tables, ids):
            rows, inverse = torch.unique(own[valid], return_inverse=True)
            looked_up.append((rows, inverse, table[rows].requires_grad_()))
        flat = sum(values[inverse] for _, inverse, values in looked_up)
        x = torch.zeros(*valid.shape, DIM, device=device).index_put((valid,), flat)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=compute == "bf16"):
            logits = model(x, mask, lengths[:, None, None, None])
        loss = binary_cross_entropy_with_logits(logits.float()[valid], labels[valid], reduction="sum") / (BATCH * MEAN)
        adam.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
        for optimizer, (rows, _, values) in zip(optimizers, looked_up):
            optimizer.step(rows, values.grad)
        wait()
        times.append(time.perf_counter() - began)
        losses.append(loss.item())
    return times, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--compute", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    steps = given.steps if given.device == "cuda" else min(given.steps, 3)
    times, losses = train(given.device, given.compute, steps)
    found = {"compute": given.compute, "step_ms": 1e3 * statistics.median(times[10:] or times[1:]), "first_loss": losses[0], "last_loss": losses[-1]}
    print(f"PyTorch, {given.compute}: {found['step_ms']:.3f} ms a step, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    if given.json:
        given.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
