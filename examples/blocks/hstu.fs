// The HSTU block with parameters in its norms, named as in PyTorch.

block hstu(x, heads) {
  let d = width(x)
  let u, v, q, k = split(silu(linear(layer_norm(x, name: "n1"), 4 * d, name: "uvqk")), 4)
  let a = silu_attention(q, k, v, heads: heads)
  return x + linear(layer_norm(a, name: "n2") * u, d, name: "o")
}

// Two blocks and one logit per token.
block ranker(x, heads) {
  repeat 2 as l {
    x = hstu(x, heads)
  }
  return linear(x, 1, name: "head")
}
