"""Writers and references of the file families, made from their written specification alone.

Nothing here imports `spacy_elmo`: what a reader makes of these files is compared with the
references by tests that import both.
"""
