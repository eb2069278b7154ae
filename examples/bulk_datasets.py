"""Embed a column of a Hugging Face dataset, in one process or several.

python examples/bulk_datasets.py texts.jsonl embedded --pipeline en_elmo_sm --processes 2
"""

from __future__ import annotations

import argparse

import datasets

from spacy_elmo import EmbedColumns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", help="JSON lines with a column of texts")
    parser.add_argument("out", help="the folder of the dataset to write")
    parser.add_argument("--pipeline", default="en_elmo_sm", help="a name or a path (en_elmo_sm)")
    parser.add_argument("--text", default="text", help="the column (text)")
    parser.add_argument("--processes", type=int, default=1, help="how many (1)")
    args = parser.parse_args()
    dataset = datasets.load_dataset("json", data_files=args.texts, split="train")
    # Each process loads the pipeline at its first batch. The object's pickle, by which `map` finds
    # its results of earlier runs, does not change when it is used; nor does it when the folder of
    # the pipeline changes: then give `new_fingerprint`.
    embed = EmbedColumns(args.pipeline, text=args.text, threads=1)
    embedded = dataset.with_format("arrow").map(
        embed, batched=True, batch_size=2000, num_proc=args.processes
    )
    embedded.with_format("numpy").save_to_disk(args.out)


if __name__ == "__main__":
    main()
