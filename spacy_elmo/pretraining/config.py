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

# Settings that a resumed run may change: limits, reporting, and where files are.
RESUMABLE_SETTINGS = {"paths", "system.kernel"} | {
    f"pretraining.{name}"
    for name in (
        "max_steps", "max_epochs", "max_minutes", "patience", "keep_checkpoints",
        "eval_frequency", "eval_minutes", "checkpoint_frequency", "checkpoint_minutes",
    )
}  # fmt: skip
# Of the settings that change what is learned, those that decide how many steps a training has.
LENGTH_SETTINGS = {
    "pretraining.batch_words",
    "pretraining.accumulate_gradient",
    "pretraining.optimizer.schedule",
    "pretraining.optimizer.total_steps",
}
# Those that it may change, too, and that change what is learned: `TrainState.changes` has them.
RECORDED_SETTINGS = LENGTH_SETTINGS | {
    f"pretraining.optimizer.{name}"
    for name in (
        "learn_rate", "muon_rate", "warmup_steps", "decay_steps", "grad_clip", "weight_decay",
    )
}  # fmt: skip
# Schedules that need to know where they end.
ENDING_SCHEDULES = ("cosine", "wsd")
# Settings that only some optimizers use.
_OPTIMIZER_SETTINGS = {
    **dict.fromkeys(("weight_decay", "beta1", "beta2"), ("adamw", "muon")),
    "muon_rate": ("muon",),
    "initial_accumulator": ("adagrad",),
}


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

    def __post_init__(self) -> None:
        if self.tied and self.name == "adaptive":
            raise ValueError(
                "tied is true, but an adaptive softmax cannot be tied to the word embeddings"
            )


@dataclass(frozen=True, config=SETTINGS)
class OptimizerConfig:
    """The optimizer and its learning rates. The defaults are the paper's.

    name (str): "adagrad" (the paper's), which updates only the rows of a sampled softmax that a
        step reads; "adamw", whose moments and decay change every row in every step; or "muon":
        Muon (Jordan et al. 2024) for the matrices of LSTMs, highways and projections, AdamW for the
        rest. It learns most from a word, for a fifth more time per step.
    learn_rate (float): The highest rate; with Muon, that of AdamW.
    muon_rate (float): The highest rate of Muon.
    schedule (str): After the warm-up: "constant", "inverse_sqrt", "cosine" (to a hundredth of the
        rate at total_steps) or "wsd" (constant, then to zero over the last decay_steps).
    warmup_steps (int): Steps in which the rate rises from 0.
    total_steps (int): Where a cosine or wsd schedule ends; 0 for the end of the training, by
        max_steps or max_epochs as they were when it began. One of them must then be set:
        max_minutes does not tell the number of steps.
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
    schedule: Literal["constant", "cosine", "inverse_sqrt", "wsd"] = "constant"
    warmup_steps: Count = 0
    total_steps: Count = 100_000
    decay_steps: Count = 0
    grad_clip: NotNegative = 0.5
    weight_decay: NotNegative = 0.01
    beta1: Number = 0.9
    beta2: Number = 0.98
    initial_accumulator: Number = 0.0025

    def __post_init__(self) -> None:
        if not self.total_steps or self.schedule not in ENDING_SCHEDULES:
            return
        decay_steps = self.decay_steps if self.schedule == "wsd" else 0
        if self.warmup_steps + decay_steps > self.total_steps:
            also = f" and decay_steps ({decay_steps})" if decay_steps else ""
            raise ValueError(
                f"warmup_steps ({self.warmup_steps}){also} must be at most "
                f"total_steps ({self.total_steps}), where the schedule ends"
            )


@dataclass(frozen=True, config=SETTINGS)
class PretrainingConfig:
    """How to train.

    batch_words (int): Words per batch, about.
    carry_state (bool): Read rows that continue from batch to batch, with the LSTMs' states carried
        over (the paper's and bilm-tf's way), instead of whole sentences from zero states (what the
        model sees at inference). Evaluations read the held-out part in the same way.
    unroll_steps (int): Steps per batch of such rows, batch_words // unroll_steps of them.
    accumulate_gradient (int): Batches per step.
    dropout (float): Of each LSTM layer's input, and of the top layer's output.
    mixed_precision (bool): bfloat16 products. A processor that is not faster in them, or a GPU
        without them (NVIDIA's before Ampere), trains in float32, with a warning; of several
        processes, the first one decides.
    max_steps, max_epochs, max_minutes: Whichever comes first ends the training; 0 for no limit.
        Minutes count over all runs of a training that is resumed.
    eval_frequency (int): Steps between evaluations on the held-out part; 0 for none by steps. The
        last step is always evaluated.
    eval_minutes (float): Or minutes, whichever comes first; 0 for none by minutes.
    eval_words (int): Words of the held-out part that an evaluation reads, the same random sample
        every time; 0 for all.
    patience (int): Evaluations without a better perplexity that end the training; 0 for no end.
    checkpoint_frequency (int): Steps between checkpoints; 0 for none by steps. Every evaluation and
        the end have one, too.
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

    def __post_init__(self) -> None:
        if self.carry_state and self.batch_words < self.unroll_steps:
            raise ValueError(
                f"batch_words ({self.batch_words}) must be unroll_steps "
                f"({self.unroll_steps}) or more: a batch has batch_words // unroll_steps rows"
            )


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
    """Read a config file (see `RunConfig`).

    path (Path): The file.
    overrides (Mapping): Values by dotted name, as on spaCy's command line.
    RAISES (ValueError): Naming every section, setting and value that is wrong.
    """
    try:
        config = Config().from_disk(path, overrides=dict(overrides))
    except OSError as error:
        raise ValueError(f"cannot read the config {path}: {error}") from error
    except Exception as error:  # confection's errors are of several kinds.
        raise ValueError(f"the config {path} is wrong: {error}") from error
    return validate(RunConfig, {name: value for name, value in config.items() if value is not None})


def diff_configs(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """RETURNS (dict): The old and the new values of the settings, by full name, that make two
    configs (as dicts) different trainings."""
    changes: dict[str, tuple[Any, Any]] = {}
    for name in sorted({*old, *new}):
        full = prefix + name
        # Only the section of the optimizer has these settings.
        is_unused = new.get("name") not in _OPTIMIZER_SETTINGS.get(name, (new.get("name"),))
        if full in RESUMABLE_SETTINGS or is_unused:
            continue
        first, second = old.get(name), new.get(name)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            changes |= diff_configs(first, second, f"{full}.")
        elif first != second:
            changes[full] = first, second
    return changes
