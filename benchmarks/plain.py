"""A deliberately plain biLM, as the yardstick: what one writes first.

Characters padded to 50, the character CNN once per token, batches of 32 sentences as they come,
padded to the longest, one Python step per position and direction.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from spacy_elmo.bilm import BiLM
from spacy_elmo.bilm.model import LSTMLayer
from spacy_elmo.bilm.token_encoder import CharCNN, character_ids


@torch.inference_mode()
def embed(bilm: BiLM, sentences: Sequence[Sequence[str]], batch_size: int = 32) -> list[Tensor]:
    """RETURNS (list): For each sentence, shape (L+1, tokens, 2P)."""
    result = []
    for start in range(0, len(sentences), batch_size):
        bos, eos = bilm.token_encoder.boundaries
        batch = [[bos, *tokens, eos] for tokens in sentences[start : start + batch_size]]
        lengths = [len(tokens) for tokens in batch]
        x = _encode(bilm.token_encoder, batch, max(lengths))
        stacks = [
            _run(bilm, layers, x, lengths, reverse)
            for layers, reverse in (
                (bilm.lstm.forward_layers, False),
                (bilm.lstm.backward_layers, True),
            )
        ]
        layers = torch.stack([torch.cat(pair, dim=-1) for pair in zip(*stacks)])
        result += [layers[:, i, 1 : length - 1] for i, length in enumerate(lengths)]
    return result


def _encode(encoder: CharCNN, batch: list[list[str]], longest: int) -> Tensor:
    most = encoder.config.max_characters_per_token
    padded = [[*tokens, *[""] * (longest - len(tokens))] for tokens in batch]
    ids = torch.full((len(batch), longest, most), encoder.padding)
    for row, tokens in enumerate(padded):
        characters, _ = character_ids(tokens, most, encoder.dictionary)
        ids[row, :, : characters.shape[1]] = torch.from_numpy(characters)
    x = F.embedding(ids.view(-1, most), encoder.char_embedding.weight).transpose(1, 2)
    y = torch.cat([F.relu(conv(x).amax(2)) for conv in encoder.convolutions], dim=1)
    for highway in encoder.highways:
        gate = torch.sigmoid(highway.carry(y))
        y = gate * F.relu(highway.transform(y)) + (1 - gate) * y
    if encoder.word_embedding is not None:
        y = torch.cat((encoder.embed_words([x for tokens in padded for x in tokens]), y), dim=1)
    return encoder.projection(y).view(len(batch), longest, -1)


def _run(bilm: BiLM, layers, x: Tensor, lengths: list[int], reverse: bool) -> list[Tensor]:
    flip = torch.arange(x.shape[1]).repeat(len(x), 1)
    if reverse:
        for row, length in enumerate(lengths):
            flip[row, :length] = flip[row, :length].flip(0)
    rows = torch.arange(len(x)).unsqueeze(1)
    outputs = [x]
    x = x[rows, flip]
    for number, layer in enumerate(layers):
        y = _run_layer(bilm, layer, x)
        x = x + y if number and bilm.config.lstm.use_skip_connections else y
        outputs.append(x[rows, flip])
    return outputs


def _run_layer(bilm: BiLM, layer: LSTMLayer, x: Tensor) -> Tensor:
    config = bilm.config.lstm
    h = x.new_zeros(len(x), config.projection_dim)
    c = x.new_zeros(len(x), config.dim)
    outputs = []
    for step in range(x.shape[1]):
        gates = F.linear(torch.cat((x[:, step], h), dim=1), layer.gate_weight, layer.gate_bias)
        i, j, f, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
        c = c.clamp(-config.cell_clip, config.cell_clip)
        h = F.linear(torch.sigmoid(o) * torch.tanh(c), layer.projection_weight)
        h = h.clamp(-config.proj_clip, config.proj_clip)
        outputs.append(h)
    return torch.stack(outputs, dim=1)
