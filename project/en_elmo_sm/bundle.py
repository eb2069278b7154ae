"""Put a pretrained biLM into the package, in half precision, with its model card.

python project/en_elmo_sm/bundle.py RUN/model-last CARD spacy_elmo/weights/en_elmo_sm
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from wasabi import msg

from spacy_elmo.bilm.formats import native, round_to_half
from spacy_elmo.weights import load_bilm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("pipeline", "card", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    bilm = load_bilm(args.pipeline)
    round_to_half(bilm)
    native.write(bilm, args.out)
    shutil.copy(args.card, args.out / "README.md")
    size = sum(path.stat().st_size for path in args.out.iterdir())
    msg.good(f"{args.out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
