"""Faults planted in the source of running code: one exact replacement, undone afterwards."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from faults.cases import CaseResult, CheckCase

from privlearn.accountants import prices, spend_checks, token_entries
from privlearn.contract import tokens
from privlearn.errors import CheckError
from privlearn.ledger import spend_forms


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in the source of one function or method.

    Args:
        target: ``"package.module:function"`` or ``"package.module:Class.method"``; methods that
            call ``super()`` without arguments cannot be changed.
        old: text that occurs exactly once.
        new: what takes its place.
    """

    target: str
    old: str
    new: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module or class, and who imported it, has the changed function while this is open.

        Raises:
            CheckError: the target or the text is gone, so that the mutant proves nothing, or
            another edit has changed this function.
        """
        holder, name, original = self._found()
        changed = self._changed(holder, name, original)
        holders = [holder, *_importers(holder, name, original)]
        for each in holders:
            setattr(each, name, changed)
        try:
            yield
        finally:
            for each in holders:
                setattr(each, name, original)

    def _found(self) -> tuple[Any, str, Any]:
        module, _, path = self.target.partition(":")
        *outer, name = path.split(".")
        try:
            holder: Any = importlib.import_module(module)
            for part in outer:
                holder = getattr(holder, part)
            return holder, name, vars(holder)[name]
        except (ImportError, AttributeError, KeyError):
            raise CheckError(f"{self.target}: there is nothing of that name to change") from None

    def _changed(self, holder: Any, name: str, original: Any) -> Any:
        function = inspect.unwrap(_function_in(original))
        try:
            source = textwrap.dedent(inspect.getsource(function))
        except (OSError, TypeError):  # changed already, or written in C
            raise CheckError(f"{self.target}: its source cannot be read") from None
        found = source.count(self.old)
        if found != 1:
            raise CheckError(f"{self.target}: {self.old!r} occurs {found} times, must be once")
        changed = source.replace(self.old, self.new)
        if isinstance(holder, type):  # in a class of the same name, which private names go by
            changed = f"class {holder.__name__}:\n" + textwrap.indent(changed, "    ")
        made: dict[str, Any] = {}
        tree = ast.parse("from __future__ import annotations\n" + changed)
        code = compile(tree, f"<{self.target}, changed>", "exec", dont_inherit=True)
        exec(code, function.__globals__, made)
        return vars(made[holder.__name__])[name] if isinstance(holder, type) else made[name]


def _importers(holder: Any, name: str, original: Any) -> list[Any]:
    """Modules of this package that have a function of the module ``holder`` by its name."""
    if isinstance(holder, type):
        return []
    return [
        module
        for known, module in list(sys.modules.items())
        if known.partition(".")[0] == "privlearn"
        and module is not holder
        and vars(module).get(name) is original
    ]


def _function_in(attribute: Any) -> Any:
    if isinstance(attribute, property):
        return attribute.fget
    return getattr(attribute, "__func__", attribute)


@dataclass(frozen=True, slots=True)
class Mutant:
    """This package's own code with a fault planted in it: a case like any other.

    Attributes:
        name: unique.
        description: in one sentence, what was planted.
        edits: all of them are made together.
        case: put together and checked while the fault is there; without it the check must pass.
    """

    name: str
    description: str
    edits: tuple[Edit, ...]
    case: CheckCase

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The fault is there for as long as this is open; not for use in several threads.

        Raises:
            CheckError: a text that is to be replaced is gone.
        """
        with ExitStack() as stack:
            for edit in self.edits:
                stack.enter_context(edit.applied())
            _forget()
            try:
                yield
            finally:
                _forget()

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> CaseResult:
        with self.applied():
            return self.case.check(confidence=confidence, seed=seed)


def _forget() -> None:
    """Empties the caches of this package, which would carry results over."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "privlearn":
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear") and not isinstance(value, type):
                    value.cache_clear()
    seen: list[dict[Any, Any]] = [prices._PRICED, spend_checks._EARNED, spend_checks._FORMS]
    kept = [*seen, token_entries._FORMS, tokens._PRICED, spend_forms.KNOWN]
    for cache in [*kept, *spend_checks._GOOD.values()]:
        cache.clear()


@dataclass(frozen=True, slots=True)
class InspectionCase:
    """Something that can be looked at: ``fault()`` names what is wrong, or returns None."""

    fault: Callable[[], str | None]

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> CaseResult:
        """As for every case; nothing is random, so both arguments are ignored."""
        found = self.fault()
        return CaseResult(found is not None, found or "looked at: nothing is wrong")


@dataclass(frozen=True, slots=True)
class Deferred:
    """A case that is put together at the check, by code that may have been changed for it."""

    make: Callable[[], CheckCase]

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> CaseResult:
        return self.make().check(confidence=confidence, seed=seed)
