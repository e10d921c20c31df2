"""Groups of commands, each imported when it is called or listed, with those of other distributions.

A distribution announces a command in the group ``privlearn.commands``: ``errata`` is a command of
``privlearn``, ``run ldp-sgd`` one of ``privlearn run``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from privlearn.cli.output import BAD_INPUT, fail
from privlearn.errors import PackageError
from privlearn.values.packages import COMMANDS, announced, look_up

_STUDIES: Final = "in the studies, which are not installed: pip install ./studies (in a clone)"
_IN_STUDIES: Final = ("errata", "reproduce", "run ldp-ols", "run ldp-sgd")
_ANY: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Of a command that cannot run: whatever it is given, it says why."""


def announcing_group(prefix: str = "", own: Mapping[str, str] | None = None) -> type[TyperGroup]:
    """A group that also has the commands which are announced under ``prefix``.

    Args:
        prefix: the group's own name and a space; empty for the first group.
        own: by name, the ``module:attribute`` of commands of this package, in the order of the
            help.  They are imported one by one, as importing all takes half a second.
    """
    targets = own or {}

    class AnnouncingGroup(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            own = [*targets, *super().list_commands(ctx)]
            found = {name.removeprefix(prefix) for name in _known() if _in(name, prefix)}
            return [*own, *sorted(found - set(own))]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name in targets and cmd_name not in self.commands:
                self.commands[cmd_name] = _imported(cmd_name, targets[cmd_name])
            own = super().get_command(ctx, cmd_name)
            return _announced(prefix + cmd_name) if own is None else own

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            known, own = self.list_commands(ctx), self.commands
            if args and args[0] not in known:  # what is meant is suggested from among all
                self.commands = {name: own.get(name) or _refusing(name, "") for name in known}
            try:
                return super().resolve_command(ctx, args)
            finally:
                self.commands = own

    return AnnouncingGroup


def _imported(name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    app, found = typer.Typer(add_completion=False), getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(found)
    app.callback()(lambda: None)  # so that one command is still in a group
    whole: Any = get_command(app)
    return whole.commands[name]


def _known() -> set[str]:
    return {*announced(COMMANDS), *_IN_STUDIES}


def _in(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and " " not in name.removeprefix(prefix)


def _announced(name: str) -> Any:
    try:
        found = look_up(COMMANDS, name)
        if found is not None:
            return command_of(name, found.load(), str(found))
    except PackageError as error:
        say = f"{error} (see `privlearn packages --load`)"
        return _refusing(name, say, "Cannot be loaded: see `privlearn packages --load`.")
    return _refusing(name, f"{name} is {_STUDIES}", f"Is {_STUDIES}.") if name in _known() else None


def _refusing(name: str, message: str, help: str = "") -> Any:
    """A command that only says why it cannot run; a broken one does not end the list of all."""
    app, last = typer.Typer(add_completion=False), name.rpartition(" ")[2]

    @app.command(last, help=help, context_settings=_ANY)
    def refuse() -> None:
        fail(message, BAD_INPUT)

    return get_command(app)


def command_of(name: str, loaded: Any, by: str) -> Any:
    """What a distribution announces as a command: a function, a `typer.Typer` or a `Runnable`.

    Returns:
        A command of the ``click`` that typer uses, which is its own in later versions.

    Raises:
        PackageError: it is none of these.
    """
    app, last = typer.Typer(add_completion=False), name.rpartition(" ")[2]
    try:
        if isinstance(loaded, typer.Typer):
            app = loaded
        elif callable(loaded):
            app.command(last)(loaded)
        else:
            from privlearn.cli.run import Runnable, add_run  # slow to import

            if isinstance(loaded, Runnable):
                add_run(app, last, loaded)
        command = get_command(app)
    except (RuntimeError, ValueError, TypeError) as error:
        raise PackageError(f"{name!r} of {by}: {loaded!r:.80}: must be a command") from error
    command.name = last
    return command
