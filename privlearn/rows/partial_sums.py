"""Sums of clipped rows that are made apart and released together: sealed, like the rows.

Integers add up to the same in any order and on any number of machines, so that a release of merged
partial sums has exactly the law of one over all rows, whoever added up what.  A partial sum is *raw
data*: without noise, of few people perhaps.  It cannot be looked at, copied or pickled; between
machines it travels encrypted (`PartialSum.to_bytes`), and is to be deleted afterwards.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import ProvenanceError, RowLocalityError, UsersError
from privlearn.rows.sealed import Sealed
from privlearn.rows.stamps import NOBODY, Registry, Stamp, check_registry, joined
from privlearn.values.grid import added
from privlearn.values.json_forms import LIST, OBJECT, WHOLE, check_form, is_of

Ranges = tuple[range, ...]
"""Disjoint ranges of arrival indices in ascending order, none next to another."""

_FORMAT: Final = b"privlearn partial sum 2"
_NONCE = 12  # Bytes of a nonce of AES-GCM


@final
class PartialSum(Sealed):
    """The sealed sum, in steps of a public grid, of the clipped rows of some users.

    Made by ``partial`` of a mechanism, joined by `merge`, and released by ``release_partial``.
    """

    __slots__ = ("__board", "__defect", "__functions", "__stamp", "__terms", "__total", "__users")

    def __init__(
        self,
        users: Ranges,
        total: NDArray[Any],
        terms: Mapping[str, Any],
        functions: tuple[str, ...],
        board: object | None,
        defect: RowLocalityError | None,
        stamp: Stamp | None = None,
    ) -> None:
        self.__users, self.__total, self.__terms = users, total, copy.deepcopy(dict(terms))
        self.__functions, self.__board, self.__defect = functions, board, defect
        self.__stamp = None if stamp is None else stamp.of_sum()

    @property
    def users(self) -> Ranges:
        """Whose rows are in it."""
        return self.__users

    @property
    def count(self) -> int:
        return sum(len(part) for part in self.__users)

    @property
    def terms(self) -> dict[str, Any]:
        """What was summed, and on which grid: equal for partial sums that can be merged.

        A copy: a sum that was clipped in one way cannot be made to say that it was in another.
        """
        return copy.deepcopy(self.__terms)

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the user's functions that the rows passed through."""
        return self.__functions

    def __repr__(self) -> str:
        users = ", ".join(f"{part.start}..{part.stop - 1}" for part in self.__users)
        return f"PartialSum(users={users or 'none'}, sealed)"

    def to_bytes(self, key: bytes) -> bytes:
        """Encrypts it (AES-256-GCM), for another machine that has the key.

        The length depends on users, terms and functions, and on whether the rows were sealed or are
        `Rows.null` as a whole, which the caller decided; on nothing in the rows.  That a function
        failed its spot check, which may depend on the rows, is told on release only.

        Of rows that a registry of persons admitted its name goes with them, and nothing of whom
        they are: it counted every visit when it was admitted, whichever process did so, so that
        all sums of disjoint slots together hold a person no more often than the rule allows.

        Args:
            key: 32 bytes, from ``secrets.token_bytes(32)``, known to both machines only.

        Raises:
            ValueError: another key.
            ProvenanceError: rows that a billboard served, or that were admitted on a timetable, do
                not travel.
        """
        if self.__board is not None:
            raise ProvenanceError(
                "rows that a billboard served are released where it is: to another machine they "
                "would be logged rows"
            )
        registry = None if self.__stamp is None else self.__stamp.registry
        if registry is not None and registry.rule.clock == "timetable":
            raise ProvenanceError(
                "rows on a timetable are released where it is kept: a slot may have visits at "
                "several machines, whose sums cannot be merged; send the rows (rows_to_bytes)"
            )
        width = _width(self.count)
        body = {
            "users": [[part.start, part.stop] for part in self.__users],
            "total": [f"{int(x):+0{width}d}" for x in self.__total],
            "terms": self.__terms,
            "functions": list(self.__functions),
            "defect": int(self.__defect is not None),
            "admitted": None if self.__stamp is None else _stamp_form(self.__stamp),
        }
        nonce = os.urandom(_NONCE)
        text = json.dumps(body, separators=(",", ":")).encode()
        return nonce + bytes(cipher_of(key).encrypt(nonce, text, _FORMAT))

    @classmethod
    def from_bytes(cls, data: bytes, key: bytes, *, people: Registry | None = None) -> PartialSum:
        """Decrypts what `to_bytes` gave under the same key.

        Args:
            people: the registry of persons that admitted the rows, if one did, as this process has
                it.

        Raises:
            TypeError: no bytes.
            ValueError: another key, or bytes that were changed, or not what `to_bytes` writes.
            ProvenanceError: another registry admitted the rows, or one did, and none is given.
            PeopleError: the registry is older than the rows.
        """
        from cryptography.exceptions import InvalidTag

        cipher = cipher_of(key)
        if not isinstance(data, bytes):
            raise TypeError(f"data: must be bytes, from to_bytes, not {type(data).__name__}")
        try:
            text = cipher.decrypt(data[:_NONCE], data[_NONCE:], _FORMAT)
        except (InvalidTag, ValueError):
            raise ValueError(
                f"data of {len(data)} bytes: no partial sum under this key, or changed on the way"
            ) from None
        try:
            body = json.loads(text)
            users, total, functions, defect, terms = _read(body)
            name, pooled = _admitted(body["admitted"])
        except (ValueError, TypeError, KeyError):  # no word of what is in it
            raise ValueError("data: encrypted with this key, but no partial sum") from None
        stamp = None if body["admitted"] is None else NOBODY
        if name is not None:
            check_registry(name, people, max((part.stop for part in users), default=0))
            stamp = Stamp(people, None, pooled=pooled)
        return cls(users, total, terms, functions, None, defect, stamp)

    @staticmethod
    def _opened(partial: PartialSum) -> NDArray[Any]:
        """A copy of the sum itself; for receipts only.

        Raises:
            RowLocalityError: a function that the rows passed through failed its spot check.
        """
        if partial.__defect is not None:
            raise partial.__defect
        return partial.__total.copy()

    @staticmethod
    def _of_nobody(like: PartialSum, users: Ranges = ()) -> PartialSum:
        """What adds nothing to sums that can be merged with ``like``; for partitions without rows.

        Functions that rows would pass through are named all the same.  With ``users`` it stands in
        the place of their sum, for a release that opens nothing.
        """
        nothing, board = np.zeros_like(like.__total), like.__board
        return PartialSum(users, nothing, like.__terms, like.__functions, board, None, NOBODY)

    @staticmethod
    def _size_of(partial: PartialSum) -> tuple[int, ...]:
        return partial.__total.shape

    @staticmethod
    def _board_of(partial: PartialSum) -> object | None:
        return partial.__board

    @staticmethod
    def _stamp_of(partial: PartialSum) -> Stamp | None:
        return partial.__stamp

    @staticmethod
    def _merged(one: PartialSum, other: PartialSum) -> PartialSum:
        if one.__terms != other.__terms:
            name, first, second = first_difference(one.__terms, other.__terms)
            raise ValueError(
                f"{name} = {first!r} and {second!r}: partial sums can be merged where the same "
                "mechanism made them"
            )
        if one.__board is not other.__board:
            raise ProvenanceError("cannot merge rows of different billboards or sources")
        return PartialSum(
            joined_ranges((*one.__users, *other.__users)),
            added(one.__total, other.__total),
            one.__terms,
            tuple(dict.fromkeys((*one.__functions, *other.__functions))),
            one.__board,
            one.__defect or other.__defect,
            joined([(one.__stamp, 0), (other.__stamp, 0)]),
        )


def first_difference(one: Any, other: Any, name: str = "") -> tuple[str, Any, Any]:
    """Where terms that differ do so first: the dotted name of what differs, and both values."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return name, one, other
    names = (n for n in dict.fromkeys((*one, *other)) if one.get(n) != other.get(n))
    within = next(names)
    return first_difference(one.get(within), other.get(within), f"{name}.{within}".lstrip("."))


def merge(*partials: PartialSum) -> PartialSum:
    """The partial sum over the rows of all of them, the same in any order.

    Raises:
        TypeError: something else than partial sums, or none.
        ValueError: they were made with other parameters, which are named.
        UsersError: a user is in two of them.
        ProvenanceError: of different billboards or sources.
    """
    if not partials or not all(isinstance(partial, PartialSum) for partial in partials):
        kinds = ", ".join(type(partial).__name__ for partial in partials)
        raise TypeError(f"partials = ({kinds}): must be one PartialSum or more")
    total = partials[0]
    for partial in partials[1:]:
        total = PartialSum._merged(total, partial)
    return total


def joined_ranges(ranges: Iterable[range]) -> Ranges:
    """In order; those that meet become one.

    Raises:
        UsersError: a user is in two of them.
    """
    parts = sorted(ranges, key=lambda part: part.start)
    found: list[range] = []
    for part in parts:
        if found and part.start < found[-1].stop:
            twice = range(part.start, min(part.stop, found[-1].stop))
            raise UsersError(
                f"users {twice.start}..{twice.stop - 1} are in two partial sums: every row counts "
                "once"
            )
        if found and part.start == found[-1].stop:
            found[-1] = range(found[-1].start, part.stop)
        else:
            found.append(part)
    return tuple(found)


def _width(count: int) -> int:
    """Characters of a sum of so many 64-bit integers, sign included: the same for all of them."""
    return len(str(count << 63)) + 1


def _read(
    body: Any,
) -> tuple[Ranges, NDArray[Any], tuple[str, ...], RowLocalityError | None, dict[str, Any]]:
    """What `to_bytes` wrote."""
    form = {"users": LIST, "total": LIST, "terms": OBJECT, "functions": LIST, "defect": WHOLE}
    check_form("partial sum", {k: v for k, v in body.items() if k != "admitted"}, form)
    if not all(is_of(end, WHOLE) and end >= 0 for part in body["users"] for end in part):
        raise ValueError("users")
    users = tuple(range(start, stop) for start, stop in body["users"])
    if not all(users) or joined_ranges(users) != users:
        raise ValueError("users")
    width = _width(sum(map(len, users)))
    if not all(isinstance(x, str) and len(x) == width for x in body["total"]):
        raise ValueError("total")
    total = [int(x) for x in body["total"]]
    if not users and any(total):
        raise ValueError("total")
    if not all(isinstance(name, str) for name in body["functions"]):
        raise ValueError("functions")
    functions = tuple(body["functions"])
    defect = RowLocalityError(
        f"{', '.join(functions)}: on the machine that added up these rows, the result of a row "
        "changed when other rows of its block were replaced, or when it was computed again"
    )
    numbers = np.array(total, dtype=object)
    smallest = added(numbers, np.zeros(numbers.shape, np.int64))
    return users, smallest, functions, defect if body["defect"] else None, body["terms"]


def _stamp_form(stamp: Stamp) -> dict[str, Any]:
    return {
        "registry": None if stamp.registry is None else stamp.registry.id,
        "pooled": int(stamp.pooled),
    }


def _admitted(form: Any) -> tuple[str | None, bool]:
    """The name of the registry, and whether rows were pooled; raises as `_read`."""
    if form is None:
        return None, False
    name = form["registry"]
    if set(form) != {"registry", "pooled"} or form["pooled"] not in (0, 1):
        raise ValueError("admitted")
    if name is not None and not isinstance(name, str):
        raise ValueError("admitted")
    return name, bool(form["pooled"])


def cipher_of(key: bytes) -> Any:
    """AES-256-GCM under a key; raises ValueError unless it is of 32 bytes."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if not isinstance(key, bytes) or len(key) != 32:
        raise ValueError("key: must be 32 bytes, such as secrets.token_bytes(32)")
    return AESGCM(key)
