"""Tools on top of the component: reading texts, writing vectors (files, Parquet, Ray), nearest
neighbours, smaller weights, `Embed` for columns and `Embedder` for lists of tokens.
Nothing in the component, the layers or the network imports them."""
