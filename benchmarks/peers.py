"""Transformers from Hugging Face with random weights, as a yardstick: what people use instead."""

from __future__ import annotations

import argparse
import math

import texts
import torch
from common import matmul_rate, peak_mb, seconds
from torch import nn

# Names of models and of their configurations in `transformers`.
PEERS = {"BERT-base": "Bert", "DistilBERT": "DistilBert"}
PIECES_PER_TOKEN = 1.3
PEER_BATCH = 32


def measure_peer(args: argparse.Namespace) -> dict:
    """A transformer on as many word pieces as the sentences would have, in batches that are sorted
    by length. Operations are those of the products with weights, padding not counted."""
    import transformers

    name, dtype = PEERS[args.shape], getattr(torch, args.precision)
    before = 0.0 if args.device == "cuda" else peak_mb(args.device)
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")()
    model = getattr(transformers, f"{name}Model")(config).eval().to(args.device, dtype)
    _, sentences = texts.sentences(args.sentences)
    most = config.max_position_embeddings
    lengths = [min(math.ceil(PIECES_PER_TOKEN * len(tokens)) + 2, most) for tokens in sentences]
    lengths.sort(reverse=True)
    batches = []
    for start in range(0, len(lengths), PEER_BATCH):
        batch = torch.tensor(lengths[start : start + PEER_BATCH]).unsqueeze(1)
        mask = torch.arange(lengths[start]) < batch
        ids = torch.randint(1000, config.vocab_size, mask.shape)
        batches.append((ids.to(args.device), mask.long().to(args.device)))

    @torch.inference_mode()
    def run(batches: list[tuple[torch.Tensor, torch.Tensor]] = batches) -> None:
        for ids, mask in batches:
            model(input_ids=ids, attention_mask=mask)

    run(batches[:1])
    time_all = seconds(run, args.device, repeats=3)
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    n_weights = sum(m.weight.numel() for n, m in layers if not n.startswith("pooler"))
    rate = 2 * n_weights * sum(lengths) / time_all / 1e9
    limit = matmul_rate(args.device, args.precision)
    n_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    row = {"cold": sum(map(len, sentences)) / time_all, "GFLOP/s": rate, "mm GFLOP/s": limit}
    peak = peak_mb(args.device) - before
    return {**row, "fraction": rate / limit, "weights MB": n_bytes / 1e6, "peak MB": peak}
