"""Which version of another library is installed, and whether its prices were read."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from privlearn.errors import PackageError


def installed(distribution: str, module: str, known: tuple[str, ...], install: str) -> Any:
    """Imports a module of another library, of a version whose code was read for its bridge.

    Args:
        distribution: its name on the package index.
        module: to import.
        known: the versions that were read.
        install: what to install, as the remedy.

    Raises:
        PackageError: it is not installed, of another version, or cannot be imported.
    """
    try:
        found = version(distribution)
    except PackageNotFoundError:
        raise PackageError(
            f"{distribution} is not installed, nothing was spent: pip install {install}"
        ) from None
    if found not in known:
        raise PackageError(
            f"{distribution} {found}: the bridge knows the prices of {', '.join(known)} only, "
            f"nothing was spent: pip install {install}"
        )
    try:
        return import_module(module)
    except ImportError as error:
        raise PackageError(
            f"{distribution} {found} cannot be imported ({error}), nothing was spent: "
            f"pip install {install}"
        ) from error
