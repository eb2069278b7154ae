"""A biLM as an objective of `spacy pretrain`, for small runs in spaCy's own loop. `spacy elmo
pretrain` is faster, measures perplexity, and can be resumed.

Words are hashed into a fixed number of rows, as in spaCy's hash embeddings, because spaCy's loop
has no vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy
from spacy.attrs import IS_SPACE, ORTH
from spacy.tokens import Doc
from spacy.util import registry
from spacy.vocab import Vocab
from thinc.api import Model, Ops, Softmax
from thinc.types import Floats2d

from .encoder import NAME as ENCODER
from .encoder import BatchLayers


@registry.architectures("spacy-elmo.BiLMObjective.v1")
def BiLMObjective(rows: int = 5000) -> Callable[[Vocab, Model], Model[list[Doc], Floats2d]]:
    """For `[pretraining.objective]`: train an elmo component as a language model in the loop of
    `spacy pretrain`. Its weights load with `[initialize] init_tok2vec`.

    rows (int): Number of rows that words are hashed into.
    RAISES (ValueError): If rows is not positive; at the start, if pretraining.component is not an
        elmo component.
    """
    if rows < 1:
        raise ValueError(f"spacy-elmo.BiLMObjective.v1: rows must be 1 or more, found {rows}")

    def create(vocab: Vocab, tok2vec: Model[list[Doc], BatchLayers]) -> Model[list[Doc], Floats2d]:
        if tok2vec.name != ENCODER:
            raise ValueError(
                "spacy-elmo.BiLMObjective.v1 trains an elmo component: set pretraining.component "
                'to its name ("elmo") and pretraining.layer to ""'
            )
        head: Model[Floats2d, Floats2d] = Softmax(nO=rows)
        return Model(
            "bilm_objective",
            _forward,
            init=_init,
            layers=[tok2vec, head],
            refs={"tok2vec": tok2vec, "head": head},
            attrs={"loss": loss},
        )

    return create


def _init(model: Model[list[Doc], Floats2d], X: Any = None, Y: Any = None) -> None:
    tok2vec = model.get_ref("tok2vec")
    tok2vec.initialize(X=X)
    if X is not None:
        top = tok2vec.predict(X).layers[-1]
        model.get_ref("head").initialize(X=_stack_directions(model.ops, top))


def _forward(
    model: Model[list[Doc], Floats2d], docs: list[Doc], is_train: bool
) -> tuple[Floats2d, Callable]:
    """Probabilities of the rows, shape (2 * tokens, rows): forward, then backward."""
    batch, backprop_layers = model.get_ref("tok2vec")(docs, is_train)
    layers = batch.layers
    scores, backprop_head = model.get_ref("head")(
        _stack_directions(model.ops, layers[-1]), is_train
    )

    def backprop(d_scores: Floats2d) -> list[Doc]:
        d_layers = model.ops.xp.zeros_like(layers)
        d_layers[-1] = model.ops.xp.hstack(model.ops.xp.split(backprop_head(d_scores), 2))
        return backprop_layers(d_layers)

    return scores, backprop


def _stack_directions(ops: Ops, top: Floats2d) -> Floats2d:
    """RETURNS (Floats2d): The forward halves of all tokens, then the backward halves."""
    return ops.xp.vstack(ops.xp.split(top, 2, axis=1))


def loss(ops: Ops, docs: Sequence[Doc], scores: Floats2d) -> tuple[float, Floats2d]:
    """Cross entropy of the next word (forward) and the previous one (backward) of the doc,
    without whitespace.

    RETURNS (tuple): The sum in nats, and the gradient of the mean.
    """
    n_tokens, n_rows = len(scores) // 2, scores.shape[1]
    # Rows of `scores` that predict a word, and the words' numbers.
    predictions: list[numpy.ndarray] = [numpy.zeros(0, dtype="int64")]
    targets: list[numpy.ndarray] = [numpy.zeros(0, dtype="int64")]
    start = 0
    for doc in docs:
        values = doc.to_array([IS_SPACE, ORTH])
        words = numpy.flatnonzero(values[:, 0] == 0)
        numbers = (values[words, 1].astype("uint64") % numpy.uint64(n_rows)).astype("int64")
        predictions += [start + words[:-1], n_tokens + start + words[1:]]
        targets += [numbers[1:], numbers[:-1]]
        start += len(doc)
    prediction = ops.xp.asarray(numpy.concatenate(predictions))
    target = ops.xp.asarray(numpy.concatenate(targets))
    gradient = ops.xp.zeros_like(scores)
    gradient[prediction] = scores[prediction]
    gradient[prediction, target] -= 1
    gradient /= max(len(prediction), 1)
    probabilities = ops.xp.maximum(scores[prediction, target], 1e-20)
    return float(-ops.xp.log(probabilities).sum()), gradient
