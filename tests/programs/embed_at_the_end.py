"""Embed in a thread that outlives the main thread, and in a child with a begun iteration."""

import os
import threading

import numpy
import torch

from spacy_elmo.bilm import BiLM, BiLMConfig, CharCNNConfig, LSTMConfig
from spacy_elmo.inference import Session, Settings

torch.set_num_threads(2)
config = BiLMConfig(
    lstm=LSTMConfig(dim=16, projection_dim=8),
    char_cnn=CharCNNConfig(filters=[[1, 4], [2, 8]], embedding_dim=4),
)
session = Session(BiLM(config).eval(), Settings(max_tokens_per_batch=8))

batches = session.batches(["a", "b"], numpy.zeros(60, dtype=int), [3] * 20)
next(batches)
child = os.fork()
rest = sum(len(tokens) for tokens, _ in batches)
if not child:
    os._exit(0 if rest else 1)
print("child", os.waitpid(child, 0)[1])


def embed() -> None:
    main.join()
    print("thread", len(session.embed([["one"], ["two", "three"]])))


main = threading.main_thread()
threading.Thread(target=embed).start()
