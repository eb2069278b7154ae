"""A text classifier that adds the scores of a bag of words and of the text's mean vector."""

from __future__ import annotations

from typing import Optional

from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import (
    LayerNorm,
    Linear,
    Logistic,
    Model,
    add,
    chain,
    list2ragged,
    reduce_mean,
    softmax_activation,
    zero_init,
)
from thinc.types import Floats2d


@registry.architectures("spacy-elmo.TextCatSum.v1")
def TextCatSum(
    tok2vec: Model[list[Doc], list[Floats2d]],
    exclusive_classes: bool,
    ngram_size: int = 1,
    length: int = 262144,
    nO: Optional[int] = None,
) -> Model[list[Doc], Floats2d]:
    """`f(BOW(doc) + W norm(mean(tok2vec(doc))) + b)`, with f = softmax for exclusive classes and
    the logistic function for others.

    The gradient of the loss reaches each summand directly. In spacy.TextCatEnsemble.v2, it reaches
    the bag of words through the last layer: a network beside it learns few texts by heart before.

    tok2vec (Model): From docs to vectors, such as `ElmoListener`.
    exclusive_classes (bool): Whether a doc has exactly one class: True for `textcat`, False for
        `textcat_multilabel`.
    ngram_size, length: See spacy.TextCatBOW.v3.
    nO (Optional[int]): The number of classes; None to take it from the data.
    """
    bag_of_words = registry.architectures.get("spacy.TextCatBOW.v3")(
        exclusive_classes=exclusive_classes,
        ngram_size=ngram_size,
        no_output_layer=True,
        length=length,
        nO=nO,
    )
    output = Linear(nO, init_W=zero_init)
    pooled: Model = chain(tok2vec, list2ragged(), reduce_mean(), LayerNorm(), output)
    activation = softmax_activation() if exclusive_classes else Logistic()
    model: Model = chain(add(bag_of_words, pooled), activation)
    model.set_ref("tok2vec", tok2vec)
    model.set_ref("bag_of_words", bag_of_words)
    model.set_ref("output_layer", output)
    model.attrs["multi_label"] = not exclusive_classes
    return model
