"""What the names after `privlearn check` stand for: what is shipped, announced, or in a file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from privlearn import learners as le
from privlearn.checking import suite
from privlearn.checking.laws.check import Sampling, is_mechanism
from privlearn.checking.reports import CheckReport
from privlearn.checking.targets import SamplingTarget
from privlearn.errors import CheckError
from privlearn.values.packages import MECHANISMS, look_up
from privlearn.values.packages import announced as announced_names
from privlearn.values.validate import count


def is_known(name: str) -> bool:
    """Whether a name is of something that this package checks, or of a group of such."""
    return name == "all" or any(
        key == name or key.startswith(f"{name}/") for key in suite.catalogue()
    )


def chosen(names: Sequence[str]) -> dict[str, suite.Check]:
    """The checks of a name, of all names below it (``prefix-sum``), of ``all``, or of a package.
    Raises CheckError: nothing is called that. Raises PackageError: two packages announce it."""
    known = suite.catalogue()
    selected: dict[str, suite.Check] = {}
    for name in names:
        if ".py:" in name:
            selected[name] = partial(own, name)
            continue
        if name.endswith(".py"):
            raise CheckError(f"{name}: say what in it is to be checked, {name}:NAME")
        matching = {
            key: checks
            for key, checks in known.items()
            if name in ("all", key) or key.startswith(f"{name}/")
        }
        if not matching and look_up(MECHANISMS, name) is not None:
            matching = {name: partial(announced, name)}
        if not matching:
            groups = sorted({key.partition("/")[0] for key in known})
            close = get_close_matches(name, [*groups, *known, *announced_names(MECHANISMS)], 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise CheckError(
                f"nothing is called {name!r}{hint}; known: all, {', '.join(groups)}, a name below "
                "one of these (`privlearn check --list`), or path/to/module.py:Factory"
            )
        selected |= matching
    return selected


def run(
    checks: Mapping[str, suite.Check], how: Sampling, *, jobs: int = 1
) -> Iterator[CheckReport]:
    """Reports of the checks, in order; they do not depend on the number of processes."""
    if count(jobs=jobs) == 1:
        yield from (check(how) for check in checks.values())
        return
    from joblib import Parallel, delayed

    tasks = (delayed(_of_name)(name, how) for name in checks)
    yield from Parallel(n_jobs=jobs, return_as="generator")(tasks)


def _of_name(name: str, how: Sampling) -> CheckReport:
    return chosen([name])[name](how)


def own(where: str, how: Sampling) -> CheckReport:
    """Checks what ``path/to/module.py:Factory`` makes. That is a mechanism, a `SamplingTarget`, or
    a learner that was not started."""
    with _loaded(where) as made:
        return _report(where, where.rpartition(":")[2], made, how)


def announced(name: str, how: Sampling) -> CheckReport:
    """Checks what another package announces in the group ``privlearn.mechanisms``."""
    found = look_up(MECHANISMS, name)
    if found is None:
        raise CheckError(f"nothing is announced as {name!r}")
    return _report(str(found), name, _called(str(found), found.load()), how)


def _report(where: str, name: str, made: Any, how: Sampling) -> CheckReport:
    if isinstance(made, SamplingTarget):
        return suite.mechanism_report(made.name, lambda: made, how)
    if isinstance(made, le.Learner):
        return suite.replayed(name, made, {}, how)
    if hasattr(made, "loss") and is_mechanism(made):
        return suite.mechanism_report(name, lambda: made, how)
    raise CheckError(
        f"{where} is {made!r}: must be, or make when called without arguments, a mechanism "
        "(loss() and release(rows, token) or open(token)), a SamplingTarget, or a learner"
    )


@contextmanager
def _loaded(where: str) -> Iterator[Any]:
    """What a file makes; in the block it can be imported, and what lies beside it."""
    path, _, attribute = where.rpartition(":")
    if not Path(path).is_file():
        raise CheckError(f"{path}: no such file")
    name = f"checked {Path(path).stem.replace('.', ' ')}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a name that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(Path(path).resolve().parent)
    beside = [] if folder in sys.path else [folder]
    sys.modules[name] = module  # where dataclasses look for their module
    sys.path += beside  # as by `python path`
    try:
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise CheckError(f"{path}: {type(error).__name__}: {error}") from error
        if not hasattr(module, attribute):
            raise CheckError(f"{path} has no {attribute!r}")
        yield _called(where, getattr(module, attribute))
    finally:
        sys.modules.pop(name, None)
        for added in beside:
            sys.path.remove(added)


def _called(where: str, made: Any) -> Any:
    if isinstance(made, type) or not (
        isinstance(made, SamplingTarget | le.Learner)
        or hasattr(made, "release")
        or hasattr(made, "open")
    ):
        try:
            return made()
        except Exception as error:
            raise CheckError(
                f"{where} was called without arguments to make what is to be checked, and fails: "
                f"{type(error).__name__}: {error}.  Wrap a plain function of data in "
                "privlearn.checking.sampling_target(function, claim, neighbours)"
            ) from error
    return made
