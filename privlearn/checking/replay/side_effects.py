"""What code does beside what it returns: files, processes, the environment, global values, chance.

An audit hook of the interpreter (PEP 578) tells of them; there is one for all checks, as hooks
cannot be taken away. Global values of the code under test and chance that it draws by itself start
alike in every run, and are put back at the end."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import random
import re
import sys
import tempfile
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.random import bit_generator

from privlearn.checking.mined import global_names, is_library, reached
from privlearn.checking.replay.canonical import CanonicalForm, CanonicalValue, marshalled
from privlearn.errors import CheckError
from privlearn.values.user_code import FAILED, attempted

Told = Callable[[str, str], None]  # Takes what was done, and where
OUTSIDE = {
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.exec"), "a process"),
    **dict.fromkeys(("os.posix_spawn", "os.fork"), "a process"),
    **dict.fromkeys(("socket.connect", "socket.sendto", "socket.bind"), "a connection"),
}  # Events after which something can leave that no check sees
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod")
_BESIDE = {
    **dict.fromkeys(_CHANGES, "files"),
    **dict.fromkeys(("os.putenv", "os.unsetenv"), "the environment"),
    **OUTSIDE,
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_RANDOM_NAME = re.compile(re.escape(tempfile.gettempdir()) + r"/tmp\w+")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MOST_BYTES = 10_000_000
_LISTENING: list[Callable[[str, tuple[Any, ...]], None]] = []


@functools.cache
def _hook() -> None:
    def heard(event: str, args: tuple[Any, ...]) -> None:
        for listen in _LISTENING:
            listen(event, args)

    sys.addaudithook(heard)


@contextlib.contextmanager
def listening(listen: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Hands every event of the interpreter to a function, which must not raise."""
    _hook()
    _LISTENING.append(listen)
    try:
        yield
    finally:
        _LISTENING.remove(listen)


class _Files:
    """Files that are opened to write, with their sizes before."""

    def __init__(self, tell: Told, but_in: str) -> None:
        self._tell, self._but_in = tell, but_in
        self._sizes: dict[str, int | None] = {}

    def heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if isinstance(path, str | bytes | os.PathLike) and _writes(mode, flags):
                self._opened(os.path.abspath(os.fsdecode(path)))
        elif event in _BESIDE and self._but_in not in str(args):
            self._tell(f"{event} {_nameless(args)}\n", _BESIDE[event])

    def _opened(self, path: str) -> None:
        if path.startswith((os.devnull, self._but_in)) or "__pycache__" in path:
            return
        if path not in self._sizes:
            self._sizes[path] = os.path.getsize(path) if os.path.isfile(path) else None
        self._tell(f"{_nameless(path)} is opened to write\n", "files")

    def written(self) -> None:
        """Tells what stands in them now; those that were not there before are taken away."""
        for path, before in self._sizes.items():
            if not os.path.isfile(path):
                continue
            with open(path, "rb") as file:
                whole = file.read(_MOST_BYTES)
            more = whole[before:] if before and len(whole) >= before else whole
            digest = hashlib.sha256(more).hexdigest()[:8]
            self._tell(f"{digest} {more[:200]!r}\n", _nameless(path))
            if before is None:
                os.remove(path)


def _writes(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITING)


def _nameless(told: Any) -> str:
    return _ADDRESS.sub(" at 0x", _RANDOM_NAME.sub("a temporary file", str(told)))


@contextlib.contextmanager
def side_effects(tell: Told, seed: int, but_in: str) -> Iterator[None]:
    """Tells of what the block does beside, but in one folder; its own chance is fixed meanwhile."""
    files, variables = _Files(tell, but_in), dict(os.environ)
    with _fixed_chance(seed):
        try:
            with listening(files.heard):
                yield
        finally:
            files.written()
            if dict(os.environ) != variables:
                os.environ.clear()
                os.environ.update(variables)


@contextlib.contextmanager
def _fixed_chance(seed: int) -> Iterator[None]:
    """Global generators, and those that nobody gave a seed, draw the same in every such block."""
    plain, of_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with patch.object(bit_generator, "randbits", random.Random(seed).getrandbits):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(plain)


@contextlib.contextmanager
def beside_the_accountant(seen: set[str]) -> Iterator[None]:
    """Notes chance that is drawn by itself, processes and connections, while the block runs."""

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event in OUTSIDE:
            seen.add(f"{OUTSIDE[event]} ({event})")

    def noted(draw: Callable[..., Any], name: str) -> Callable[..., Any]:
        def drawn(*args: Any, **options: Any) -> Any:
            if (caller := _asker()) is not None:
                seen.add(f"{name} ({Path(caller.co_filename).name}, {caller.co_name})")
            return draw(*args, **options)

        return drawn

    before = _states_of_chance()
    own: Any = (
        (np.random, "default_rng"),
        (os, "urandom"),
        (random, "_urandom"),
    )  # also of secrets
    with contextlib.ExitStack() as stack:
        stack.enter_context(listening(heard))
        for module, name in own:
            draw = getattr(module, name)
            told = "numpy default_rng" if module is np.random else "os.urandom"
            stack.enter_context(patch.object(module, name, noted(draw, told)))
        yield
    seen.update(what for what, read, state in before if read() != state)


def _asker() -> types.CodeType | None:
    """Whose code asks for chance, unless it is this package's or the standard library's."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in ("random", "secrets"):
        frame = frame.f_back
    top = "" if frame is None else str(frame.f_globals.get("__name__")).partition(".")[0]
    own = top not in {"privlearn", ""} | sys.stdlib_module_names
    return frame.f_code if frame is not None and own else None


def _states_of_chance() -> list[tuple[str, Callable[[], Any], Any]]:
    """Generators that are there, and how to read their states."""
    known: list[tuple[str, Callable[[], Any]]] = [
        ("the generator of random", random.getstate),
        ("the global generator of numpy.random", functools.partial(_text, np.random.get_state)),
    ]
    for item in gc.get_objects():
        if type(item) is np.random.Generator:
            states = functools.partial(getattr, item.bit_generator, "state")
            known.append(("a generator of numpy.random", functools.partial(_text, states)))
    return [(what, read, read()) for what, read in known]


def _text(read: Callable[[], Any]) -> str:
    with np.printoptions(threshold=sys.maxsize):
        return repr(read())


_PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, frozenset)
_CHANGING: Any = (list, dict, set, deque, bytearray, np.ndarray)


@dataclass
class _Global:
    """A value that a module or a class holds under a name; of a thread's, its variables."""

    owner: Any
    name: str
    held: Any
    before: CanonicalValue
    kept: Any

    def form(self) -> CanonicalValue:
        return _form(vars(self.owner).get(self.name))

    def put_back(self) -> None:
        if self.form() == self.before:
            return
        value, kept = _inside(self.held), deepcopy(self.kept)
        if isinstance(value, np.ndarray):
            value[...] = kept
        elif isinstance(value, _CHANGING):
            value.clear()
            (value.update if isinstance(value, dict | set) else value.extend)(kept)
        setattr(self.owner, self.name, self.held)


def _inside(value: Any) -> Any:
    return vars(value) if isinstance(value, threading.local) else value


def _form(value: Any) -> CanonicalValue:
    try:
        return marshalled(CanonicalForm({}, objects=True).of(_inside(value), ""))
    except CheckError:
        return None


class Globals:
    """Values that classes and functions of the code under test hold outside of objects.

    Args:
        things: the learner's class, or what makes it.
    """

    def __init__(self, *things: Any) -> None:
        self._all: list[_Global] = []
        for owner, name in dict.fromkeys(_held(things)):
            value = vars(owner).get(name)
            if not isinstance(value, (*_PLAIN, *_CHANGING, threading.local)):
                continue
            kept, before = attempted(deepcopy, _inside(value)), _form(value)
            if kept is not FAILED and before is not None:
                self._all.append(_Global(owner, name, value, before, kept))

    def put_back(self) -> None:
        """As they were at first."""
        for each in self._all:
            each.put_back()

    def changed(self) -> dict[str, bytes]:
        """Those with public names that are no longer as they were, by name, in bytes."""
        return {
            f"{each.owner.__name__}.{each.name}": form
            for each in self._all
            if not each.name.startswith("_") and (form := each.form()) not in (each.before, None)
        }


def _held(things: tuple[Any, ...]) -> Iterator[tuple[Any, str]]:
    """Modules and classes with the names of what they hold, as far as code of ``things`` goes."""
    for part in reached(*things):
        if isinstance(part, type):
            for base in part.__mro__:
                if not is_library(base):
                    yield from ((base, name) for name in list(vars(base)) if name[:2] != "__")
        elif isinstance(part, types.FunctionType) and not is_library(part):
            module = sys.modules.get(part.__module__)
            held = vars(module) if module is not None else {}
            yield from ((module, name) for name in global_names(part) if name in held)
