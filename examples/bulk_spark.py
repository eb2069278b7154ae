"""Embed a column of a Spark data frame.

    spark-submit examples/bulk_spark.py texts.jsonl vectors --pipeline en_elmo_sm

The workers need spacy-elmo, and the pipeline at the same path.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from spacy_elmo import EmbedColumns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", help="JSON lines with a column of texts")
    parser.add_argument("out", help="the folder of Parquet files to write")
    parser.add_argument("--pipeline", default="en_elmo_sm", help="a name or a path (en_elmo_sm)")
    parser.add_argument("--text", default="text", help="the column (text)")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("embed").getOrCreate()
    frame = spark.read.json(args.texts)
    embed = EmbedColumns(args.pipeline, text=args.text, dtype="float32", threads=1)

    def add_vectors(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Spark has neither float16 nor lists of a fixed size."""
        for batch in map(embed, batches):
            vectors = batch.column(embed.output).cast(pyarrow.list_(pyarrow.float32()))
            yield batch.set_column(batch.num_columns - 1, embed.output, vectors)

    vectors = StructField(embed.output, ArrayType(FloatType()))
    schema = StructType([*frame.schema.fields, vectors])
    frame.mapInArrow(add_vectors, schema).write.parquet(args.out)
    spark.stop()


if __name__ == "__main__":
    main()
