"""Who counts as a neighbour, and whom the user has to trust."""

from __future__ import annotations

from enum import Enum


class Adjacency(Enum):
    """The neighbour relation that a guarantee speaks about."""

    REPLACE_ONE = "replace-one"
    """One user's whole record, own data and response function, is replaced by any other."""
    ZERO_OUT = "zero-out"
    """The record at one known arrival index becomes the null record."""
    ADD_REMOVE = "add-remove"
    """One record is inserted or deleted; only for spends on the whole population at once."""


class Trust(Enum):
    """Who sees raw data, and hence whom a guarantee protects against."""

    CENTRAL = "central"
    """A curator sees the rows; everything released is protected."""
    JOINT = "joint"
    """As central, but each user also gets an output of their own, seen by nobody else."""
    LOCAL = "local"
    """Each user randomises on their own device."""


class Calibration(Enum):
    """Where the noise level of a spend comes from."""

    PROVED = "proved"
    PUBLISHED = "published"
