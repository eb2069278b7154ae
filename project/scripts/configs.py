"""Copy the ready-made configs of spacy-elmo to a folder. Files that are there already are kept.

python scripts/configs.py configs
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import spacy_elmo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    target = parser.parse_args().folder
    source = Path(spacy_elmo.__file__).parent / "configs"
    for path in source.rglob("*.cfg"):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists():
            shutil.copyfile(path, copy)


if __name__ == "__main__":
    main()
