"""The hyper-parameters of pretraining, and the config file that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Optional, Union

from thinc.api import Config

from ..bilm import BiLMConfig, CharCNNConfig, LSTMConfig
from .losses import LossConfig

# What may change between the runs of a training that is resumed: how long it goes on, and what it
# tells. Everything else would make it another training.
FREE_TO_CHANGE = {
    "paths",
    "pretraining.max_steps",
    "pretraining.max_epochs",
    "pretraining.max_minutes",
    "pretraining.patience",
    "pretraining.keep_checkpoints",
    "pretraining.eval_frequency",
    "pretraining.checkpoint_frequency",
}
# Settings that one optimizer alone uses.
_OPTIMIZER_OF = {
    "pretraining.optimizer.weight_decay": "adamw",
    "pretraining.optimizer.beta1": "adamw",
    "pretraining.optimizer.beta2": "adamw",
    "pretraining.optimizer.initial_accumulator": "adagrad",
}

# The names that a config can hold; {} for sections that are checked where they are read. Those of
# [bilm] are an options.json's, of which only the settings of an architecture: another setting that
# is published there, such as dropout, would have no effect.
_ARCHITECTURE = BiLMConfig(LSTMConfig(1, 1), CharCNNConfig(((1, 1),), projection=True)).to_options()
_SETTINGS: dict[str, Any] = {
    "paths": {"corpus": None, "init_from": None},
    "system": {"seed": 0},
    "bilm": {**_ARCHITECTURE, "n_tokens_vocab": 0},
    "pretraining": {},
}


def _check_least(config: Any, where: str, least: int, names: Sequence[str]) -> None:
    for name in names:
        if getattr(config, name) < least:
            raise ValueError(
                f"{where}.{name} must be {least} or more, found {getattr(config, name)}"
            )


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning rates. The defaults are the paper's.

    name (str): "adagrad" (the paper's), which updates only the rows of a sampled softmax that a
        step reads, or "adamw", whose moments and decay change every row in every step.
    learn_rate (float): The highest rate.
    schedule (str): "constant", "cosine" or "inverse_sqrt", after the warm-up.
    warmup_steps (int): Steps in which the rate rises from 0.
    total_steps (int): Where a cosine schedule ends, at a hundredth of the rate; 0 for where the
        training does, by max_steps or max_epochs as they were when it began.
    grad_clip (float): Bound of the global norm of the gradient; 0 for none.
    weight_decay, beta1, beta2 (float): Of AdamW.
    initial_accumulator (float): Of Adagrad. bilm-tf has 1.0 and a clip of 10.0, but for a loss that
        is multiplied by unroll_steps = 20. For the mean loss, 1 / 20**2 and 10 / 20 are the same.
    """

    name: Literal["adagrad", "adamw"] = "adagrad"
    learn_rate: float = 0.2
    schedule: Literal["constant", "cosine", "inverse_sqrt"] = "constant"
    warmup_steps: int = 0
    total_steps: int = 100_000
    grad_clip: float = 0.5
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.98
    initial_accumulator: float = 0.0025

    def __post_init__(self) -> None:
        for name, known in (
            ("name", ("adagrad", "adamw")),
            ("schedule", ("constant", "cosine", "inverse_sqrt")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"pretraining.optimizer.{name} must be one of {', '.join(known)}, found "
                    f"{getattr(self, name)!r}"
                )
        if self.learn_rate <= 0:
            raise ValueError(
                f"pretraining.optimizer.learn_rate must be positive, found {self.learn_rate}"
            )
        not_negative = ("grad_clip", "warmup_steps", "total_steps", "weight_decay")
        _check_least(self, "pretraining.optimizer", 0, not_negative)
        if self.schedule == "cosine" and 0 < self.total_steps < self.warmup_steps:
            raise ValueError(
                f"pretraining.optimizer.warmup_steps ({self.warmup_steps}) must be at most "
                f"total_steps ({self.total_steps}), where the schedule ends"
            )


@dataclass(frozen=True)
class PretrainingConfig:
    """How to train.

    batch_words (int): Words per batch, about.
    carry_state (bool): Read rows that go on from batch to batch, with the LSTMs' states carried
        over (the paper's and bilm-tf's way), instead of whole sentences from zero states (what the
        model sees at inference). Evaluations read the held-out part in the same way.
    unroll_steps (int): Steps per batch of such rows, batch_words // unroll_steps of them.
    accumulate_gradient (int): Batches per step.
    dropout (float): See `LanguageModel`.
    mixed_precision (bool): bfloat16 products.
    max_steps, max_epochs, max_minutes: Whichever comes first ends the training; 0 for no limit.
        Minutes count over all runs of a training that is resumed.
    eval_frequency (int): Steps between evaluations on the held-out part.
    eval_words (int): Words of the held-out part that an evaluation reads, the same random sample
        every time; 0 for all.
    patience (int): Evaluations without a better perplexity that end the training; 0 for no end.
    checkpoint_frequency (int): Steps between checkpoints.
    keep_checkpoints (int): How many of the last checkpoints to keep.
    loss, optimizer: See there.
    """

    batch_words: int = 4096
    carry_state: bool = False
    unroll_steps: int = 20
    accumulate_gradient: int = 1
    dropout: float = 0.1
    mixed_precision: bool = False
    max_steps: int = 100_000
    max_epochs: int = 10
    max_minutes: float = 0.0
    eval_frequency: int = 500
    eval_words: int = 100_000
    patience: int = 0
    checkpoint_frequency: int = 500
    keep_checkpoints: int = 2
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        positive = (
            "batch_words",
            "unroll_steps",
            "accumulate_gradient",
            "eval_frequency",
            "checkpoint_frequency",
            "keep_checkpoints",
        )
        _check_least(self, "pretraining", 1, positive)
        not_negative = ("max_steps", "max_epochs", "max_minutes", "eval_words", "patience")
        _check_least(self, "pretraining", 0, not_negative)
        if self.carry_state and self.batch_words < self.unroll_steps:
            raise ValueError(
                f"pretraining.batch_words ({self.batch_words}) must be unroll_steps "
                f"({self.unroll_steps}) or more: a batch has batch_words // unroll_steps rows"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(
                f"pretraining.dropout must be at least 0 and less than 1, found {self.dropout}"
            )


@dataclass(frozen=True)
class RunConfig:
    """A whole config file.

    corpus (Optional[Path]): What `spacy elmo prepare` wrote.
    init_from (Optional[Union[str, Path]]): A pretrained model to go on with: a name
        or a path.
    seed (int): Decides weights, order and dropout.
    bilm (Optional[BiLMConfig]): The architecture; None to take that of init_from.
    pretraining (PretrainingConfig): How to train.
    logger (Optional[dict]): The block [pretraining.logger], see `loggers`.
    """

    corpus: Optional[Path]
    init_from: Optional[Union[str, Path]]
    seed: int
    bilm: Optional[BiLMConfig]
    pretraining: PretrainingConfig
    logger: Optional[dict[str, Any]] = None

    def to_dict(self) -> dict[str, Any]:
        """RETURNS (dict): As JSON can hold it."""
        return {
            "paths": {
                "corpus": None if self.corpus is None else str(self.corpus),
                "init_from": None if self.init_from is None else str(self.init_from),
            },
            "system": {"seed": self.seed},
            "bilm": None if self.bilm is None else self.bilm.to_options(),
            "pretraining": asdict(self.pretraining),
        }


def read_config(path: Path, overrides: Mapping[str, Any] = {}) -> RunConfig:
    """Read a config file: sections [paths], [system], [bilm] (an options.json as sections; word
    input has no [bilm.char_cnn]), [pretraining], [pretraining.loss], [pretraining.optimizer],
    [pretraining.logger].

    path (Path): The file.
    overrides (Mapping): Values by dotted name, as on spaCy's command line.
    RAISES (ValueError): If a section, a setting or a value is wrong.
    """
    try:
        config = Config().from_disk(path, overrides=dict(overrides))
    except OSError as error:
        raise ValueError(f"cannot read the config {path}: {error}") from error
    except Exception as error:  # confection's errors are of several kinds.
        raise ValueError(f"the config {path} is wrong: {error}") from error
    _check_names(config, _SETTINGS, "")
    paths = {name: _path(value, name) for name, value in config.get("paths", {}).items()}
    options = config.get("bilm") or None
    block = dict(config.get("pretraining") or {})
    logger = block.pop("logger", None)
    loss = read_section(LossConfig, block.pop("loss", {}), "pretraining.loss")
    optimizer = read_section(OptimizerConfig, block.pop("optimizer", {}), "pretraining.optimizer")
    return RunConfig(
        corpus=None if (corpus := paths.get("corpus")) is None else Path(corpus),
        init_from=paths.get("init_from"),
        seed=_seed(config.get("system", {}).get("seed", 0)),
        bilm=None if options is None else BiLMConfig.from_options(_complete(options)),
        pretraining=read_section(
            PretrainingConfig, {**block, "loss": loss, "optimizer": optimizer}, "pretraining"
        ),
        logger=logger,
    )


def _check_names(values: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    """RAISES (ValueError): If there is a section or a setting that is not known, or one in place of
    the other."""
    for name, value in values.items():
        full = where + name
        if name not in known:
            raise ValueError(f"the config has no setting {full!r}, only {', '.join(known)}")
        if isinstance(known[name], Mapping) != isinstance(value, Mapping) and value is not None:
            kind = "a section" if isinstance(known[name], Mapping) else "a setting"
            raise ValueError(f"{full} must be {kind}, found {value!r}")
        if isinstance(value, Mapping) and known[name]:
            _check_names(value, known[name], f"{full}.")


def _path(value: Any, name: str) -> Optional[str]:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"paths.{name} must be a path, found {value!r}")
    return value


def _seed(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"system.seed must be 0 or a positive number, found {value!r}")
    return value


def _complete(options: dict[str, Any]) -> dict[str, Any]:
    """What a training config need not say: the vocabulary's size comes from the corpus."""
    options = {
        name: dict(value) if isinstance(value, dict) else value for name, value in options.items()
    }
    if "char_cnn" not in options:
        options.setdefault("n_tokens_vocab", 3)
    return options


def read_section(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    """Make a dataclass of settings from a mapping of them.

    kind (type): The dataclass. Settings that are not given have its defaults.
    where (str): What the settings are part of, for the messages.
    RAISES (ValueError): If a setting is not known, or of another type than its default.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} must be a section, found {values!r}")
    known = {f.name: f for f in fields(kind)}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{where}: no setting {name!r}, only {', '.join(known)}")
        default = known[name].default
        if default is MISSING or default is None:
            continue
        if isinstance(default, tuple):
            if not isinstance(value, list) or not all(type(item) is int for item in value):
                raise ValueError(f"{where}.{name} must be a list of numbers, found {value!r}")
            continue
        allowed = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, allowed) or isinstance(value, bool) != isinstance(default, bool):
            raise ValueError(
                f"{where}.{name} must be of type {type(default).__name__}, found {value!r}"
            )
    return kind(**values)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """RETURNS (list): What makes two configs (as dicts) different trainings, as
    "name: old -> new"."""
    found = []
    for name in sorted({*old, *new}):
        full = prefix + name
        if full in FREE_TO_CHANGE or _OPTIMIZER_OF.get(full, new.get("name")) != new.get("name"):
            continue
        first, second = old.get(name), new.get(name)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            found += differences(first, second, f"{full}.")
        elif _plain(first) != _plain(second):
            found.append(f"{full}: {first} -> {second}")
    return found


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
