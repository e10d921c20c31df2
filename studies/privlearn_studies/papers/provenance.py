"""What a study's runs depend on besides what was asked for: source, versions and data."""

from __future__ import annotations

import ast
import hashlib
import platform
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

OURS: Final = ("privlearn", "privlearn_studies")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute."""
    packages = {name: version(name) for name in ("privlearn", "numpy", "scipy")}
    return {"python": platform.python_version(), **packages}


def array_digest(*arrays: np.ndarray[Any, Any]) -> str:
    """Tells arrays apart by shapes and values."""
    digest = hashlib.sha256()
    for values in arrays:
        digest.update(repr(values.shape).encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def source_digest(module: ModuleType) -> str:
    """Tells apart the source that a module depends on: equal versions may still be edited."""
    digest = hashlib.sha256()
    for name, path in sorted(source_files(module.__name__).items()):
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@lru_cache
def source_files(name: str) -> dict[str, Path]:
    """A module and all of ours that it imports, early or late, by dotted name."""
    files: dict[str, Path] = {}
    names, seen = [name], {name}
    while names:
        name = names.pop()
        if (path := _source(name)) is None:
            continue
        files[name] = path
        found = {name.rpartition(".")[0], *_imported(path)} - seen
        names += found
        seen |= found
    return files


@lru_cache(maxsize=4096)
def _source(name: str) -> Path | None:
    """Where a module lies; nothing but packages is imported to find that out."""
    parent = name.rpartition(".")[0]
    if parent:
        above = _source(parent)
        if above is None or above.name != "__init__.py":
            return None  # what is imported from a module, not from a package
    spec = find_spec(name) if name else None
    return Path(spec.origin) if spec is not None and spec.origin else None


@lru_cache(maxsize=1024)
def _imported(path: Path) -> frozenset[str]:
    """What may be a module of ours among what a file imports; studies share most files."""
    found: set[str] = set()
    for node in _statements(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            if node.module.partition(".")[0] in OURS:
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
                found.update(_home(node.module, alias.name) for alias in node.names)
    return frozenset(name for name in found if name.partition(".")[0] in OURS)


def _statements(within: ast.AST) -> Iterator[ast.AST]:
    """Imports are statements; expressions, most of a file, hold none and are not walked."""
    for part in ast.iter_child_nodes(within):
        if isinstance(part, ast.stmt | ast.excepthandler | ast.match_case):
            yield part
            yield from _statements(part)


def _home(package: str, name: str) -> str:
    """Where a name comes from that a package imports late, as its stub says; empty if nowhere."""
    return _homes(package).get(name, "")


@lru_cache
def _homes(package: str) -> dict[str, str]:
    path = _source(package)
    stub = path.with_suffix(".pyi") if path is not None else None
    if stub is None or not stub.is_file():
        return {}
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(stub.read_bytes())):
        match node:
            case ast.ImportFrom(level=1, module=str(home), names=names):
                for alias in names:
                    found.setdefault(alias.name, f"{package}.{home}")
    return found
