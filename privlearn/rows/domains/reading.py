"""Domains from their JSON forms.

Each set is announced in its own file, by `ships`; a set of this package that is not cannot be
rebuilt by a reader of the ledger, and what follows from it is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from privlearn.rows.domains.base import Domain, ShippedDomain
from privlearn.values.json_forms import TEXT, Form, check_form, named
from privlearn.values.packages import DOMAINS, Announced, made_from


class _Kind(NamedTuple):
    form: Form
    optional: Form
    read: Callable[[Mapping[str, Any]], Domain[Any]]


_KINDS: dict[str, _Kind] = {}
OF_OBJECTIVES = frozenset({"choices", "labelled"})
"""Sets of this package whose records objectives are functions of: no price follows from them, and
no reader rebuilds them."""
SHIPPED: set[type] = set()
"""The classes that came with this package: frozen, so that equal ones are alike."""


def ships(
    cls: type[ShippedDomain],
    form: Form,
    read: Callable[[Mapping[str, Any]], Domain[Any]],
    optional: Form | None = None,
) -> None:
    """Announces a set of this package: the names of its JSON form, and who reads it."""
    _KINDS[cls.kind] = _Kind(form, optional or {}, read)
    SHIPPED.add(cls)


def domain_from_dict(data: Mapping[str, Any]) -> Domain[Any] | None:
    """Rebuilds a shipped domain from its JSON form; None for a domain that only its author knows.

    Raises:
        ValueError: a shipped kind with bad or missing numbers, of other JSON types, or more.
    """
    kind = named("domain", data, "kind")
    if kind not in _KINDS:
        return None
    form, optional, read = _KINDS[kind]
    try:
        check_form(f"{kind} domain", data, {"kind": TEXT, **form}, optional)
        return read(data)
    except KeyError as missing:
        raise ValueError(f"{kind} domain lacks {missing}") from None


def is_shipped_kind(name: str) -> bool:
    """Whether a kind came with this package; no other can take its name."""
    return name in _KINDS or name in OF_OBJECTIVES


def announced_domain(data: Mapping[str, Any]) -> tuple[Domain[Any], Announced] | None:
    """Rebuilds a set of another package, whose module is imported; None if nobody announces it.

    No kind of this package can be announced by another one.

    Raises:
        PackageError: two announce it, or it cannot be rebuilt.
        ValueError: the kind is no text.
    """
    kind = named("domain", data, "kind")
    return None if kind is None or is_shipped_kind(kind) else made_from(DOMAINS, kind, data)


def is_shipped(domain: Domain[Any]) -> bool:
    """Whether a domain came with this package, so that anybody can rebuild it."""
    rebuilt = domain_from_dict(domain.to_dict())
    # not == alone: a class of somebody else may say that it equals anything
    return type(rebuilt) is type(domain) and rebuilt == domain
