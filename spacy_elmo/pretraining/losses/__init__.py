"""Output layers of the language model, and their losses: a module each.

A module has what `Softmax` has: `n_words`, `start_from`, `draw`, `forward` and `log_likelihood`.
"""
