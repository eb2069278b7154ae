"""Round a pretrained biLM to half precision, as it comes with the package.

    python bundle.py CORPUS/average CORPUS/en_elmo_sm --mix 0 0.5 0.5
    PACKAGE=../../spacy_elmo/weights/en_elmo_sm
    python bundle.py CORPUS/en_elmo_sm $PACKAGE --card $PACKAGE/README.md

The first command makes what is evaluated, with the output layer beside it (OUT.head). The second
one puts it into the package, with its card, which is there already, and its sources. It removes the
output layer of the old weights: output_layer.py makes another. --mix gives the weights their own
default mix instead of the mean of the layers.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

from wasabi import msg

from spacy_elmo.bilm.mixes import TrainedMix
from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.files import atomic_folder, remove_folder
from spacy_elmo.formats import round_to_half, safetensors_format
from spacy_elmo.pretraining.head import head_folder
from spacy_elmo.weights import load_bilm

SOURCES = Path(__file__).parent / "SOURCES.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--card", type=Path, help="The model card; for the package")
    parser.add_argument("--mix", type=float, nargs="+", help="A weight per layer")
    args = parser.parse_args()
    with exit_on_error():
        bilm = load_bilm(args.model)
        round_to_half(bilm)
        n = bilm.config.n_activations
        if args.mix and len(args.mix) != n:
            raise ValueError(f"--mix has {len(args.mix)} weights, but there are {n} layers")
        card = None if args.card is None else args.card.read_text("utf8")
        if card is not None and re.search(r"\|\s*-\s*\|", card):
            raise ValueError(f"{args.card} has cells that are not filled in")
        if args.mix:
            bilm.trained_mix = TrainedMix(args.mix, 1.0)
        safetensors_format.write(bilm, args.out)
        head = head_folder(Path(args.model))
        if card is not None:
            (args.out / "README.md").write_text(card, "utf8")
            shutil.copy(SOURCES, args.out)
            remove_folder(head_folder(args.out))  # Of other weights.
        elif head.is_dir():
            with atomic_folder(head_folder(args.out)) as new:
                shutil.copytree(head, new, dirs_exist_ok=True)
    size = sum(path.stat().st_size for path in args.out.iterdir())
    msg.good(f"{args.out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
