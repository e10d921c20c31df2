"""Streams as a ledger records them, made again, to see whether their gain is what it should be."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, final

from privlearn.contract.spends import Spend
from privlearn.ledger.entries import SpendEntry
from privlearn.mechanisms.banded_blt import BandedBLT
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.binary_tree import BinaryTree
from privlearn.mechanisms.buffered_toeplitz import AnytimeBLT, BufferedToeplitz
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.prefix_sums import PrefixSum
from privlearn.noise import GaussianNoise, GeneralizedGaussianNoise, noise_from_dict
from privlearn.rows.domains import domain_from_dict
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

_KINDS: Final = {kind.kind: kind for kind in (BinaryTree, BufferedToeplitz, AnytimeBLT, BandedBLT)}
_MOST_WORK = 2**29  # Rows times visits, of all streams of one ledger; some seconds


@final
class RecordedStreams:
    """Says of spends of prefix sums what they would state, with an end to the work it takes."""

    def __init__(self) -> None:
        self._left = _MOST_WORK

    def __call__(self, entry: SpendEntry) -> Spend | None:
        """What the recorded stream states; None if it is none of ours, or takes too long."""
        stated, noise = entry.parameters, noise_from_dict(entry.noise)
        domain, kind = domain_from_dict(entry.domain), _KINDS.get(str(stated.get("factorization")))
        batched = entry.mechanism == "batched-prefix-sum"
        known = batched or entry.mechanism == "prefix-sum"
        if not known or kind is None or domain is None or noise is None:
            return None
        rule = stated.get("participation")
        rule = None if rule is None else Participation.from_dict(rule)
        if not self._take(stated.get("horizon"), rule):
            return None
        factorization = _made(kind, stated)
        if batched:
            if not isinstance(noise, GaussianNoise):
                raise ValueError(f"noise = {entry.noise}: a batched stream has Gaussian noise")
            sizes = tuple(stated["sizes"])
            return BatchedPrefixSum(
                domain, sizes, factorization, noise.std, _relation(entry), rule
            ).spend()
        exponent = noise.exponent if isinstance(noise, GeneralizedGaussianNoise) else 2.0
        if not isinstance(noise, GaussianNoise | GeneralizedGaussianNoise):
            raise ValueError(f"noise = {entry.noise}: a stream of sums has none of this family")
        return PrefixSum(
            domain,
            factorization,
            noise.std,
            _relation(entry),
            exponent=exponent,
            participation=rule,
        ).spend()

    def _take(self, horizon: object, rule: Participation | None) -> bool:
        """Whether there is work left for a stream; of bad form it is refused when it is made."""
        rows = horizon if isinstance(horizon, int) and horizon > 0 else 1
        work = rows * (1 if rule is None else min(rule.most, -(-rows // rule.apart)))
        if work > self._left:
            return False
        self._left -= work
        return True


def _made(kind: type[Any], stated: dict[str, Any]) -> Factorization:
    names = [each.name for each in fields(kind) if each.init and each.name in stated]
    values = {n: tuple(stated[n]) if isinstance(stated[n], list) else stated[n] for n in names}
    made: Factorization = kind(**values)
    return made


def _relation(entry: SpendEntry) -> Any:
    if entry.adjacency is Adjacency.ADD_REMOVE:
        raise ValueError("adjacency = add-remove: streams are for replace-one or zero-out")
    return entry.adjacency
