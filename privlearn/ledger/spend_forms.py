"""Spends of one mechanism differ in token and users alone: all else is looked at and written once.

A mechanism that releases often states the same domain, noise, loss and parameters each time.  What
was found of them, and their canonical JSON, is kept with the very objects, by whose identity a
further spend of them is known.
"""

from __future__ import annotations

from typing import Any, Self, final

from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.entries import SpendEntry, made, parse_entry
from privlearn.ledger.records import parse

_VARY = "token", "users", "admitted"
_MOST_KNOWN = 1024
KNOWN: dict[int, SpendForm] = {}
"""By identity of the domain's form, which every spend form has of its own."""


@final
class SpendForm:
    """What the spends of one mechanism have in common.

    Args:
        entry: one of them, of which nobody else holds a part.
    """

    __slots__ = ("_before", "_between", "_body", "_ext", "_fields", "_same")

    def __init__(self, entry: SpendEntry) -> None:
        self._fields = entry.__dict__.copy()
        self._same = [(name, self._fields[name]) for name in self._fields if name not in _VARY]
        self._body, ext = entry.body(), entry.model_copy(update={"admitted": None}).ext()
        self._ext = canonical(ext) if ext else b""
        rest = {name: value for name, value in self._body.items() if name not in _VARY}
        # in the order of their names, token and users stand around the trust alone
        trust = rest.pop("trust")
        self._before = canonical(rest)[:-1] + b',"token":'
        self._between = b',"trust":' + canonical(trust) + b',"users":'
        assert self.text(entry)[0] == canonical(self._body)
        if len(KNOWN) >= _MOST_KNOWN:
            KNOWN.clear()
        KNOWN[id(entry.domain)] = self

    @classmethod
    def of(cls, entry: SpendEntry) -> Self:
        """That of an entry that stands, of objects of its own as a reader finds them."""
        stored = parse(canonical({"body": entry.body(), "ext": entry.ext()}))
        read = parse_entry(stored["body"], stored["ext"])
        assert isinstance(read, SpendEntry)
        return cls(read)

    def entry(
        self, token: str, users: tuple[int, int], admitted: dict[str, Any] | None
    ) -> SpendEntry:
        """A further one."""
        return made(
            SpendEntry, {**self._fields, "token": token, "users": users, "admitted": admitted}
        )

    def has(self, entry: SpendEntry) -> bool:
        """Whether an entry was made here."""
        fields = entry.__dict__
        return all([fields[name] is value for name, value in self._same])

    def body(self, entry: SpendEntry) -> dict[str, Any]:
        """As of the entry itself; what is nested in it is shared."""
        return {**self._body, "token": entry.token, "users": [*entry.users]}

    def text(self, entry: SpendEntry) -> tuple[bytes, bytes]:
        """The canonical JSON of body and data of extensions; no bytes where it has none."""
        ext = self._ext if entry.admitted is None else canonical(entry.ext())
        token, users = canonical(entry.token), canonical(entry.users)
        return b"".join((self._before, token, self._between, users, b"}")), ext


def form_of(entry: object) -> SpendForm | None:
    """What a spend has in common with others; None for what was not made by such a form."""
    if entry.__class__ is not SpendEntry:
        return None
    found = KNOWN.get(id(entry.domain))
    return found if found is not None and found.has(entry) else None
