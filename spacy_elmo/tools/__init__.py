"""Tools on top of the component: reading texts, writing vectors, nearest neighbours, and the
`Embedder` for lists of tokens. Nothing in the component, the layers or the network imports them."""
