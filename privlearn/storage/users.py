"""Users and groups of this host, by the names that an administrator gave them."""

from __future__ import annotations


def user_named(number: int) -> str:
    """The name of a user; the number, as text, of one without a name."""
    from pwd import getpwuid  # not on every system

    try:
        return getpwuid(number).pw_name
    except KeyError:
        return str(number)


def user_number(name: str) -> int:
    """The number of a user.

    Raises:
        ValueError: there is none of that name.
    """
    from pwd import getpwnam

    try:
        return getpwnam(name).pw_uid
    except KeyError:
        raise ValueError(f"user {name!r:.80}: there is none of that name on this host") from None


def group_number(name: str) -> int:
    """The number of a group.

    Raises:
        ValueError: there is none of that name.
    """
    from grp import getgrnam

    try:
        return getgrnam(name).gr_gid
    except KeyError:
        raise ValueError(f"group {name!r:.80}: there is none of that name on this host") from None
