"""The settings of pretraining, and the config file that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass
from thinc.api import Config

from ..bilm import BiLMConfig
from ..bilm.config import settings_from_options
from ..bilm.validation import SETTINGS, Bool, Number, Text, Whole, validate
from ..kernels import Kernel

Positive = Annotated[Whole, Field(ge=1)]
Count = Annotated[Whole, Field(ge=0)]
Rate = Annotated[Number, Field(ge=0, lt=1)]
NotNegative = Annotated[Number, Field(ge=0)]

# Beginnings of settings that a resumed run must not change: those of the model, of the data, and of
# what the optimizer keeps. Limits, rates, reporting, and where files are may change.
FIXED_SETTINGS = (
    "bilm", "system.seed", "pretraining.batch_words", "pretraining.carry_state",
    "pretraining.unroll_steps", "pretraining.accumulate_gradient", "pretraining.dropout",
    "pretraining.mixed_precision", "pretraining.eval_words", "pretraining.loss",
    "pretraining.optimizer.name", "pretraining.optimizer.beta",
    "pretraining.optimizer.initial_accumulator",
)  # fmt: skip
# Schedules that need to know where they end.
ENDING_SCHEDULES = ("cosine", "wsd")


@dataclass(frozen=True, config=SETTINGS)
class LossConfig:
    """The output layer.

    name (str): "sampled" and "full" train the same weights: a full softmax, estimated from some
        words (Jean et al. 2015) or computed. "adaptive" (Grave et al. 2017) has smaller weights for
        rare words.
    n_samples (int): Words that a sampled softmax draws per step.
    cutoffs (list): The first word of each cluster of an adaptive softmax.
    tied (bool): The weights are the word embeddings; for word input only.
    """

    name: Literal["sampled", "full", "adaptive"] = "sampled"
    n_samples: Positive = 8192
    cutoffs: tuple[Whole, ...] = (2000, 10000)
    tied: Bool = False


@dataclass(frozen=True, config=SETTINGS)
class OptimizerConfig:
    """The optimizer and its learning rates. The defaults are the paper's.

    name (str): "adagrad" (the paper's), which updates only the rows of a sampled softmax that a
        step reads; "adamw", whose moments and decay change every row in
        every step; or "muon": Muon (Jordan et al. 2024) for the matrices of LSTMs,
        highways and projections, AdamW for the rest, which learns most from a word.
    learn_rate (float): The highest rate; with Muon, that of AdamW.
    muon_rate (float): The highest rate of Muon.
    schedule (str): After the warm-up: "constant", "cosine" (to a hundredth of the rate at
        total_steps) or "wsd" (constant, then to zero over the last decay_steps).
    warmup_steps (int): Steps in which the rate rises from 0.
    total_steps (int): Where a cosine or wsd schedule ends; 0 for the end of the training, by
        max_steps or max_epochs.
    decay_steps (int): Steps in which the rate of a wsd schedule falls; 0 for a fifth of the steps.
    grad_clip (float): Bound of the global norm of the gradient; 0 for none.
    weight_decay (float): Of AdamW and Muon, for all but biases and embeddings.
    beta1, beta2 (float): Of AdamW.
    initial_accumulator (float): Of Adagrad. bilm-tf has 1.0 and a clip of 10.0, but for a loss that
        is multiplied by unroll_steps = 20. For the mean loss, 1 / 20**2 and 10 / 20 are the same.
    """

    name: Literal["adagrad", "adamw", "muon"] = "adagrad"
    learn_rate: Annotated[Number, Field(gt=0)] = 0.2
    muon_rate: Annotated[Number, Field(gt=0)] = 0.014
    schedule: Literal["constant", "cosine", "wsd"] = "constant"
    warmup_steps: Count = 0
    total_steps: Count = 100_000
    decay_steps: Count = 0
    grad_clip: NotNegative = 0.5
    weight_decay: NotNegative = 0.01
    beta1: Number = 0.9
    beta2: Number = 0.98
    initial_accumulator: Number = 0.0025


@dataclass(frozen=True, config=SETTINGS)
class PretrainingConfig:
    """How to train.

    batch_words (int): Words per batch, about.
    carry_state (bool): Read rows that continue from batch to batch, with the LSTMs' states carried
        over (the paper's and bilm-tf's way), instead of whole sentences from zero states (what the
        model sees at inference). Evaluations do, too.
    unroll_steps (int): Steps per batch of such rows, batch_words // unroll_steps of them.
    accumulate_gradient (int): Batches per step.
    dropout (float): Of each LSTM layer's input, and of the top layer's output.
    mixed_precision (bool): bfloat16 products. A processor or GPU that is not faster in them (such
        as NVIDIA's before Ampere) trains in float32, with a warning.
    max_steps, max_epochs, max_minutes: Whichever comes first ends the training; 0 for no limit.
        Minutes count over all runs of a training that is resumed.
    eval_frequency (int): Steps between evaluations on the held-out part; 0 for none by steps. The
        last step is always evaluated.
    eval_minutes (float): Or minutes, whichever comes first; 0 for none by minutes.
    eval_words (int): Words of the held-out part that an evaluation reads, the same random sample
        every time; 0 for all.
    patience (int): Evaluations without a better perplexity that end the training; 0 for no end.
    checkpoint_frequency (int): Steps between checkpoints, besides evaluations and the end; 0: none.
    checkpoint_minutes (float): Or minutes, whichever comes first; 0 for none by minutes.
    keep_checkpoints (int): How many of the last checkpoints to keep.
    loss, optimizer, logger: Sections of their own.
    """

    batch_words: Positive = 4096
    carry_state: Bool = False
    unroll_steps: Positive = 20
    accumulate_gradient: Positive = 1
    dropout: Rate = 0.1
    mixed_precision: Bool = False
    max_steps: Count = 100_000
    max_epochs: Count = 10
    max_minutes: NotNegative = 0.0
    eval_frequency: Count = 0
    eval_minutes: NotNegative = 30.0
    eval_words: Count = 100_000
    patience: Count = 0
    checkpoint_frequency: Count = 0
    checkpoint_minutes: NotNegative = 10.0
    keep_checkpoints: Positive = 2
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    logger: Optional[dict[str, Any]] = None


@dataclass(frozen=True, config=SETTINGS)
class PathsConfig:
    """Where files are.

    corpus (Optional[Path]): What `spacy elmo prepare` wrote.
    init_from (Optional[str]): A pretrained model to start from: a name or a path.
    """

    corpus: Optional[Path] = None
    init_from: Optional[Text] = None


@dataclass(frozen=True, config=SETTINGS)
class SystemConfig:
    """The machine.

    seed (int): Decides weights, order and dropout.
    kernel (str): See `Settings`.
    """

    seed: Count = 0
    kernel: Kernel = "auto"


def _read_architecture(options: Any) -> Any:
    if not isinstance(options, Mapping):
        return options  # A BiLMConfig, or pydantic reports what it is.
    settings = settings_from_options(options)
    if settings and "char_cnn" not in settings:
        settings.setdefault("n_tokens_vocab", 3)  # The corpus decides; see `build_model`.
    return settings or None


@dataclass(frozen=True, config=SETTINGS)
class RunConfig:
    """A config file: the sections [paths], [system], [bilm] (the sections of an options.json, or
    nothing to take those of paths.init_from; word input has no [bilm.char_cnn]), [pretraining],
    [pretraining.loss], [pretraining.optimizer] and [pretraining.logger] (see `loggers`)."""

    paths: PathsConfig = field(default_factory=PathsConfig)
    system: SystemConfig = field(default_factory=SystemConfig)
    bilm: Annotated[Optional[BiLMConfig], BeforeValidator(_read_architecture)] = None
    pretraining: PretrainingConfig = field(default_factory=PretrainingConfig)

    def to_dict(self) -> dict[str, Any]:
        """RETURNS (dict): As JSON can hold it, without the logger."""
        config = asdict(self)
        config["paths"] = {name: value and str(value) for name, value in config["paths"].items()}
        config["bilm"] = None if self.bilm is None else self.bilm.to_options()
        config["pretraining"]["loss"]["cutoffs"] = list(self.pretraining.loss.cutoffs)
        del config["pretraining"]["logger"]
        return config


def read_config(path: Path, overrides: Mapping[str, Any] = {}) -> RunConfig:
    """Read a config file; `overrides` are values by dotted name.
    RAISES (ValueError): Naming every section, setting and value that is wrong."""
    try:
        config = Config().from_disk(path, overrides=dict(overrides))
    except Exception as error:  # confection's errors are of several kinds.
        raise ValueError(f"the config {path} is wrong: {error}") from error
    return validate(RunConfig, {name: value for name, value in config.items() if value is not None})
