"""Pretraining: `corpus` turns texts into arrays, `trainer` trains on them, `export` writes the
results. PyTorch and NumPy do the training; spaCy and thinc tokenise, read configs, log, and load
and write pipelines."""
