"""``privlearn packages``, and modules that a command is told to import."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from privlearn.cli.output import BAD_INPUT, PROBLEMS, fail
from privlearn.errors import PrivlearnError
from privlearn.values.packages import (
    COMMANDS,
    DOMAINS,
    GROUPS,
    LEARNERS,
    LOSSES,
    MECHANISMS,
    NOISES,
    announced,
    look_up,
    unreadable,
)


def packages(
    load: Annotated[
        bool,
        typer.Option(
            "--load", help="Import each, which runs its package's code, and say if it can be used."
        ),
    ] = False,
) -> None:
    """List what installed packages announce: losses, mechanisms, learners, commands and so on.

    Without --load only their metadata are read, and none of their code is run.

    Exit codes: 0 well; 1 a name is announced twice, is one of privlearn's, or
    cannot be used.
    """
    from privlearn.reporting.visible import visible

    problems, found = list(unreadable()), {group: announced(group) for group in GROUPS}
    if not any(found.values()):
        typer.echo("no installed package announces anything for privlearn")
    for group in GROUPS:
        for name, claims in sorted(found[group].items()):
            for claim in claims:
                typer.echo(visible(f"{group}: {name}: {claim}"))
            if wrong := _wrong(group, name, load=load):
                problems.append(wrong)
    for problem in problems:
        typer.echo(visible(f"problem: {problem}"))
    if problems:
        raise typer.Exit(PROBLEMS)


def import_named(modules: Sequence[str]) -> None:
    """Imports modules that register kinds without entry points; those in this folder, too.

    Ends the command with exit code 2 where one cannot be imported.
    """
    if modules and os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # whatever a module of somebody else does
            fail(f"--import {module}: {type(error).__name__}: {error}", BAD_INPUT)


def _wrong(group: str, name: str, *, load: bool) -> str:
    """What is wrong with a name that is announced; empty if nothing is."""
    try:
        found = look_up(group, name)
        if found is None:
            return ""
        if _is_ours(group, name):
            return f"{name!r} of {found}: is a name of privlearn, which nobody else can take"
        return _unusable(group, name, found.load(), str(found)) if load else ""
    except PrivlearnError as error:
        return str(error)


def _is_ours(group: str, name: str) -> bool:
    if group == LOSSES:
        from privlearn.losses.base import is_built_in

        return is_built_in(name)
    if group == NOISES:
        from privlearn.noise.reading import is_shipped_family

        return is_shipped_family(name)
    if group == DOMAINS:
        from privlearn.rows.domains.reading import is_shipped_kind

        return is_shipped_kind(name)
    if group == MECHANISMS:
        from privlearn.cli.check_names import is_known

        return is_known(name)
    if group == COMMANDS:
        from privlearn.cli.main import is_own_command  # which imports this module

        return is_own_command(name)
    from privlearn import learners

    return name in learners.__all__


def _unusable(group: str, name: str, loaded: Any, by: str) -> str:
    """Why what was loaded cannot be used; empty if it can."""
    from privlearn.learners.base import Learner
    from privlearn.losses import Loss

    if group == LOSSES:
        good = _is_class(loaded, Loss) and getattr(loaded, "kind", None) == name
        wanted = "a class of losses of that kind"
    elif group == LEARNERS:
        good = _is_class(loaded, Learner) and loaded.__name__ == name
        wanted = "a class of learners of that name"
    elif group == MECHANISMS:
        good, wanted = callable(loaded) or hasattr(loaded, "loss"), "a mechanism, or make one"
    elif group == COMMANDS:
        from privlearn.cli.commands import command_of

        good, wanted = bool(command_of(name, loaded, by)), "a command"
    else:
        good = isinstance(loaded, type) and callable(getattr(loaded, "from_dict", None))
        wanted = "a class with from_dict"
    if not good:
        return f"{name!r} of {by}: {loaded!r:.80}: must be {wanted}"
    if lacking := sorted(getattr(loaded, "__abstractmethods__", ())):
        return f"{name!r} of {by}: {loaded!r:.80}: lacks {', '.join(lacking)}"
    return ""


def _is_class(found: Any, base: type) -> bool:
    return isinstance(found, type) and issubclass(found, base)
