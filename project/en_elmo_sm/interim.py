"""Keep an unfinished training in 11 MB, so that it goes on where its checkpoints are lost.

    python interim.py keep RUN interim
    python interim.py restore interim RUN CORPUS/prepared

`keep` rounds the weights of the last checkpoint in RUN to 8 bits. `restore` makes that checkpoint
again, at the same place in the data; then `spacy elmo pretrain ... RUN --resume` continues. The
optimizer's moments are not kept: they are those of the gradients of the batches that were read
last, which are computed again while the weights stay as they are.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file
from tqdm import tqdm
from wasabi import msg

from spacy_elmo.bilm import BiLM, BiLMConfig
from spacy_elmo.bilm.formats import native, round_to_int8
from spacy_elmo.bilm.int8 import Int8Weight
from spacy_elmo.bilm.validation import validate
from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.files import locked_output, save_tensors
from spacy_elmo.pretraining import checkpoint as checkpoints
from spacy_elmo.pretraining.batches import make_epoch
from spacy_elmo.pretraining.config import RunConfig
from spacy_elmo.pretraining.corpus import open_corpus
from spacy_elmo.pretraining.language_model import LanguageModel
from spacy_elmo.pretraining.train_state import TrainState
from spacy_elmo.pretraining.updater import Updater
from spacy_elmo.weights import load_bilm

HEAD, STATE, SCALES = "head.safetensors", "state.json", ".scales"
# AdamW with a beta2 of 0.98 weighs a gradient of so many steps ago by a third of a new one.
N_STEPS = 60
# Changes no weight.
NO_RATE = 1e-30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("keep")
    command.add_argument("run", type=Path)
    command.add_argument("folder", type=Path)
    command = commands.add_parser("restore")
    command.add_argument("folder", type=Path)
    command.add_argument("run", type=Path)
    command.add_argument("corpus", type=Path)
    args = parser.parse_args()
    with exit_on_error():
        if args.command == "keep":
            keep(args.run, args.folder)
        else:
            restore(args.folder, args.run, args.corpus)


def keep(run: Path, folder: Path) -> None:
    """Write the biLM as weights that load anywhere; the output layer and the state beside them.

    RAISES (ValueError): If there is no checkpoint.
    """
    path = checkpoints.find_last(run)
    if path is None:
        raise ValueError(f"{run} has no checkpoint to keep")
    state = checkpoints.read_state(path)
    tensors = load_file(path / "model.safetensors")
    bilm = BiLM(BiLMConfig.from_options(state["bilm"]))
    bilm.load_state_dict(_part(tensors, "bilm."))
    round_to_int8(bilm)
    native.write(bilm, folder)
    head = {}
    for name, value in _part(tensors, "output.").items():
        head[name] = value
        if value.dim() == 2:
            rounded = Int8Weight.quantize(value)
            head |= {name: rounded.values, name + SCALES: rounded.scales}
    save_tensors(head, folder / HEAD)
    del state["config"]["paths"]  # Those of one machine.
    (folder / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf8")
    record = state["progress"]
    msg.good(f"{folder}: step {record['step']:,}, {record['n_words']:,} words")


def restore(folder: Path, run: Path, corpus_folder: Path) -> None:
    """Make the checkpoint of `keep` again.

    RAISES (ValueError): If the run has a checkpoint, or the corpus is another one.
    """
    corpus = open_corpus(corpus_folder)
    state = json.loads((folder / STATE).read_text(encoding="utf8"))
    config = validate(RunConfig, {**state["config"], "paths": {"corpus": corpus_folder}})
    checkpoints.check_same_training(state, config, corpus)
    progress = TrainState.from_dict(state["progress"])
    settings = config.pretraining
    model = LanguageModel(
        load_bilm(str(folder)), len(corpus.words), settings.loss, settings.dropout
    )
    model.output.load_state_dict(_read_head(folder / HEAD))
    updater = Updater(model, settings, config.system.seed)
    updater.schedule = replace(settings.optimizer, learn_rate=NO_RATE)
    epoch = make_epoch(corpus.train, settings, config.system.seed, progress.epoch)
    with locked_output(run):
        if checkpoints.all_checkpoints(run):
            raise ValueError(f"{run} has checkpoints already")
        run.mkdir(parents=True, exist_ok=True)
        for number in tqdm(range(max(0, progress.batch - N_STEPS), progress.batch), disable=None):
            updater.update(epoch, [number], number)
        path = checkpoints.checkpoint_path(run, progress.step)
        checkpoints.save(path, model, updater.optimizer, [], state)
    msg.good(f"{path}: continue with --resume")


def _part(tensors: dict, prefix: str) -> dict:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _read_head(path: Path) -> dict:
    stored, head = load_file(path), {}
    for name, value in stored.items():
        if name + SCALES in stored:
            scales = stored[name + SCALES]
            head[name] = Int8Weight(value, scales, (value.shape[1],)).dequantize()
        elif not name.endswith(SCALES):
            head[name] = value
    return head


if __name__ == "__main__":
    main()
