"""Commands of other distributions, found by entry points and imported when they are called.

A distribution announces a command in the group ``privlearn.commands``: ``errata`` is a command of
``privlearn``, ``run ldp-sgd`` one of ``privlearn run``.
"""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from privlearn.cli.output import BAD_INPUT, fail
from privlearn.cli.run import Runnable, add_run
from privlearn.errors import PackageError
from privlearn.values.packages import COMMANDS, announced, look_up

STUDIES: Final = "privlearn-studies"
_IN_STUDIES: Final = ("errata", "reproduce", "run ldp-ols", "run ldp-sgd")


def announcing_group(prefix: str = "") -> type[TyperGroup]:
    """A group of commands that has those which are announced under ``prefix``, too."""

    class AnnouncingGroup(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            own = super().list_commands(ctx)
            found = {n.removeprefix(prefix) for n in announced(COMMANDS) if n.startswith(prefix)}
            return [*own, *sorted({name for name in found if " " not in name} - set(own))]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            own = super().get_command(ctx, cmd_name)
            return _announced(prefix + cmd_name) if own is None else own

    return AnnouncingGroup


def _announced(name: str) -> Any:
    found = look_up(COMMANDS, name)
    if found is not None:
        return command_of(name, found.load(), str(found))
    if name in _IN_STUDIES:
        fail(f"{name}: pip install {STUDIES}", BAD_INPUT)
    return None


def command_of(name: str, loaded: Any, by: str) -> Any:
    """What a distribution announces as a command: a function, a `typer.Typer` or a `Runnable`."""
    app, last = typer.Typer(add_completion=False), name.rpartition(" ")[2]
    if isinstance(loaded, typer.Typer):
        app = loaded
    elif isinstance(loaded, Runnable):
        add_run(app, last, loaded)
    elif callable(loaded):
        app.command(last)(loaded)
    else:
        raise PackageError(f"{name!r} of {by}: {loaded!r:.80}: must be a command")
    command = get_command(app)
    command.name = last
    return command
