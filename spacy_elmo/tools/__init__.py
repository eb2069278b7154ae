"""Tools on top of the component: reading texts, nearest neighbours, smaller weights, downloads, and
`EmbedTokens`. Nothing in the component, the layers or the network imports them."""
