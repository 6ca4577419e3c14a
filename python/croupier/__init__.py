"""Client of Croupier: send logits, get tokens.

    import croupier

    with croupier.connect("unix:/run/croupier/croupier.sock", vocab_size=128_256) as stream:
        text = stream.open(temperature=0.7, top_p=0.9, seed=1, prompt=[1, 2, 3])
        token = stream.sample(logits, [text])[0]

`croupier.aio` has the same for asyncio, and `croupier.pb` has the messages of the wire.
"""

import pkgutil

from . import aio, params
from ._info import server_info
from ._sparse import SparseDistribution
from ._top_n import TopN
from ._types import Rows, Sequence, Token
from .client import Stream, connect
from .errors import CroupierError, Failure, LogitsLost, OpenError, RowError
from .params import *
from .ranks import Rank, Sampler, attach
from .schema import pb
from .speculative import AsyncSpeculation, Draft, Speculation, SpeculationError, Verified

__version__ = "0.1.0"

# Stubs generated from the schema are the package `croupier.v1`, in another folder. This lets both be imported.
__path__ = pkgutil.extend_path(__path__, __name__)

__all__ = ["AsyncSpeculation", "CroupierError", "Draft", "Failure", "LogitsLost", "OpenError", "Rank", "RowError", "Rows",
           "Sampler", "Sequence", "SparseDistribution", "Speculation", "SpeculationError", "Stream", "Token", "TopN", "Verified", "aio", "attach",
           "connect", "params", "pb", "server_info"]
__all__ += params.__all__
