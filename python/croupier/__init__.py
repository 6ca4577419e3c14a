"""Client of Croupier: send logits, get tokens.

    import croupier

    with croupier.connect("unix:/run/croupier/croupier.sock", vocab_size=128_256) as stream:
        text = stream.open(temperature=0.7, top_p=0.9, seed=1, prompt=[1, 2, 3])
        token = stream.sample(logits, [text])[0]

`croupier.aio` has the same for asyncio, `croupier.pb` the messages of the wire.
"""

from . import aio
from ._session import Rows, Sequence, Token
from ._top_n import TopN
from .client import Stream, connect
from .errors import CroupierError, LogitsLost, RowError
from .ranks import Rank, Sampler, attach
from .schema import pb

__all__ = ["CroupierError", "LogitsLost", "Rank", "RowError", "Rows", "Sampler", "Sequence", "Stream", "Token", "TopN",
           "aio", "attach", "connect", "pb"]
