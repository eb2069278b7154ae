"""Put a pretrained biLM into the package, in half precision, with its model card and its sources.

python project/en_elmo_sm/bundle.py RUN/model-last CARD spacy_elmo/weights/en_elmo_sm

--mix gives the weights their own default mix instead of the mean of the layers.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from wasabi import msg

from spacy_elmo.bilm.formats import native, round_to_half
from spacy_elmo.bilm.mixes import TrainedMix
from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.weights import load_bilm

SOURCES = Path(__file__).parent / "SOURCES.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("card", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mix", type=float, nargs="+", help="A weight per layer")
    args = parser.parse_args()
    with exit_on_error():
        bilm = load_bilm(args.model)
        round_to_half(bilm)
        n = bilm.config.n_activations
        if args.mix and len(args.mix) != n:
            raise ValueError(f"--mix has {len(args.mix)} weights, but there are {n} layers")
        bilm.trained_mix = TrainedMix(args.mix, 1.0) if args.mix else None
        native.write(bilm, args.out)
        shutil.copy(args.card, args.out / "README.md")
        shutil.copy(SOURCES, args.out)
    size = sum(path.stat().st_size for path in args.out.iterdir())
    msg.good(f"{args.out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
