"""Where the noise of every spend comes from."""

from __future__ import annotations

from typing import final

from privlearn.errors import TokenCopyError
from privlearn.noise.exact.pool import Keystream, NoisePool, SeededWords, Words, check_sampler
from privlearn.values.validate import count


@final
class NoiseSource:
    """Where the noise of every spend comes from; it cannot be copied.

    `secure` draws from cryptographic keystreams, a fresh one for each spend.  `simulation` is
    reproducible; ledgers made with it are never certified.  Either way the same code turns words
    into noise (`privlearn.noise.exact`), which is tried against its slow path before first use.

    Raises:
        NoiseSamplerError: the tables are damaged, or this machine's arithmetic is not IEEE 754.
    """

    __slots__ = ("_words", "name", "simulated")

    def __init__(self, words: Words | None, name: str, simulated: bool):
        check_sampler()
        self._words, self.name, self.simulated = words, name, simulated

    @classmethod
    def secure(cls) -> NoiseSource:
        """Noise for real releases, from AES-256 in counter mode."""
        return cls(None, "secure keystream", simulated=False)

    @classmethod
    def simulation(cls, seed: int) -> NoiseSource:
        """Reproducible noise for experiments and tests; protects nobody."""
        words = SeededWords(count(seed=seed, at_least=0))
        return cls(words, f"simulation, seed {seed}", simulated=True)

    def pool(self) -> NoisePool:
        """The noise of one spend, asked for after it; of a simulation, the next of its seed."""
        return NoisePool(Keystream() if self._words is None else self._words)

    def __reduce__(self) -> str:
        raise TokenCopyError("a noise source cannot be copied or pickled")
