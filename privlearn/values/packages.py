"""What other installed packages announce by entry points: found by metadata, imported when asked.

A distribution names its losses, noises, domains, mechanisms, learners and commands in its metadata
(groups ``privlearn.losses`` and so on), each under the name that ledgers, or the command line, give
it.  Looking a name up reads metadata only; its module is imported when `load` is called.  A name
that two distributions claim is nobody's, and what cannot be loaded is named with its distribution.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, distributions
from typing import Any

from privlearn.errors import PackageError

LOSSES = "privlearn.losses"
NOISES = "privlearn.noises"
DOMAINS = "privlearn.domains"
MECHANISMS = "privlearn.mechanisms"
LEARNERS = "privlearn.learners"
COMMANDS = "privlearn.commands"
GROUPS = LOSSES, NOISES, DOMAINS, MECHANISMS, LEARNERS, COMMANDS


@dataclass(frozen=True, slots=True)
class Announced:
    """One entry point: who announces which name, and where it is."""

    group: str
    name: str
    target: str
    """``module:attribute``."""
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} ({self.target})"

    def load(self) -> Any:
        """What it names; its module is imported, which runs that module's code.

        Raises:
            PackageError: it cannot be imported, or is not there.
        """
        module, _, attributes = self.target.partition(":")
        try:
            found: Any = import_module(module)
            for attribute in filter(None, attributes.split(".")):
                found = getattr(found, attribute)
        except (Exception, SystemExit) as error:  # whatever a module of somebody else does
            raise PackageError(
                f"{self.name!r} of {self} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return found


def announced(group: str) -> Mapping[str, tuple[Announced, ...]]:
    """All that is announced in a group, by name; more than one where packages claim the same."""
    return _all(tuple(sys.path))[0].get(group, {})


def unreadable() -> Sequence[str]:
    """Distributions whose entry points cannot be read, and why; nothing of them is announced."""
    return _all(tuple(sys.path))[1]


@lru_cache(maxsize=8)
def _all(_: tuple[str, ...]) -> tuple[dict[str, dict[str, tuple[Announced, ...]]], tuple[str, ...]]:
    """By group and name; read again only where ``sys.path`` is another one."""
    found: dict[str, dict[str, tuple[Announced, ...]]] = {group: {} for group in GROUPS}
    seen: set[str] = set()
    broken: list[str] = []
    for distribution in distributions():
        who = "a distribution without a name"
        try:
            who = str(distribution.name)
            key = re.sub(r"[-_.]+", "-", who).lower()
            if key in seen:  # further down the path, where nothing is imported from
                continue
            seen.add(key)
            points = [point for point in distribution.entry_points if point.group in found]
            ours = [_announcement(point, who, str(distribution.version)) for point in points]
        except Exception as error:  # whatever metadata of somebody else hold
            broken.append(f"{who}: its entry points cannot be read: {error}")
            continue
        for one in ours:
            group = found[one.group]
            group[one.name] = (*group.get(one.name, ()), one)
    return found, tuple(broken)


def _announcement(point: EntryPoint, distribution: str, version: str) -> Announced:
    target = point.value.partition("[")[0].replace(" ", "")  # without extras
    return Announced(point.group, point.name, target, distribution, version)


def look_up(group: str, name: str) -> Announced | None:
    """Who announces a name; None if nobody does.

    Raises:
        PackageError: two do.
    """
    claims = announced(group).get(name, ())
    if len(claims) > 1:
        raise PackageError(
            f"{name!r} is announced in {group!r} by {' and by '.join(map(str, claims))}: "
            "uninstall all but one of them"
        )
    return claims[0] if claims else None


def made_from(group: str, name: str, data: Mapping[str, Any]) -> tuple[Any, Announced] | None:
    """What a class that a package announces makes of a JSON form, and who announces it.

    Returns:
        None if nobody announces the name.

    Raises:
        PackageError: two do, or the class does not read the form, or writes another.
    """
    announced = look_up(group, name)
    if announced is None:
        return None
    kind = announced.load()
    try:
        found = kind.from_dict(dict(data))
        same = found.to_dict() == data
    except (Exception, SystemExit) as error:  # whatever code of somebody else does
        raise PackageError(
            f"{name!r} of {announced} is not read from its form: {type(error).__name__}: {error}"
        ) from error
    if not same:
        raise PackageError(f"{name!r} of {announced} is written otherwise once it was read")
    return found, announced
