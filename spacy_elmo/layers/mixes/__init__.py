"""How the activations of all layers become one vector per token (Peters et al. 2018, section 3.2).

A mix is a thinc model that maps (L+1, tokens, 2P) to (tokens, width), token by token. Each has its
own file. Its name for configs is an entry point of the group "thinc_layers" in `setup.py`.

What a mix guarantees: vectors in the type of the layers and in memory of their own; layers that it
does not change; any number of tokens, also 0; only `mix.ops` for arrays, which are on a GPU
sometimes. The component's own mix must have no weights to train.

Two optional `attrs`: `settings` is a namespace, which thinc does not save. `mix_docs` applies a
`dropout` among them, and sets `frozen`: no gradient of the layers is needed. `state` takes the mix
and the number of layers (0 if it is not known), and returns the weight of each layer and the scale.
"""

from .concat import ConcatLayers as ConcatLayers
from .frozen import FrozenMix as FrozenMix
from .frozen import use_trained as use_trained
from .learned import LearnedMix as LearnedMix
from .mix import Mix as Mix
from .mix import MixState as MixState
from .mix import mix_state as mix_state
from .scalar import ScalarMix as ScalarMix
from .single import SingleLayer as SingleLayer
