"""Says which argument of a public call is meant, where Python only counts them.

The faces of the package hand out classes whose constructors are wrapped: a call that fits goes
through, and one that does not is told what was given, what is accepted and what would be right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import wraps
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

_EXAMPLES: Mapping[str, str] = {
    "budget": "ZCDP('1')",
    "delta": "'1e-6'",
    "dim": "3",
    "domain": "Ball(1.0, 3)",
    "epsilon": "'1'",
    "high": "1.0",
    "horizon": "1000",
    "label": "'mine'",
    "low": "0.0",
    "max_items": "10",
    "mu": "'1'",
    "n_items": "100",
    "noise": "GaussianNoise(20.0)",
    "radius": "1.0",
    "rho": "'1'",
    "size": "3",
    "token": "accountant.issue(mechanism.loss(), users=rows.users, label='mine')",
    "users": "range(1000)",
}
"""What could stand for a parameter of this name; of others the name is shown."""
_INSTEAD: Mapping[str, str] = {
    "eps": "; an epsilon is that of a budget, PureDP(epsilon) or ApproxDP(epsilon, delta)",
    "epsilon": "; an epsilon is that of a budget, PureDP(epsilon) or ApproxDP(epsilon, delta)",
    "groups": "; whose row it is says people=",
    "random_state": "; noise is drawn securely, simulate_noise=0 repeats a fit and protects nobody",
}

_BUDGETS = frozenset({"epsilon", "eps"})
"""What others call a budget."""


def explained(public: T, methods: Sequence[str] = ("__init__", "release")) -> T:
    """Returns a class whose methods of these names say what they take; anything else as it is."""
    if isinstance(public, type) and not getattr(public, "_is_protocol", False):
        for name in methods:
            home: Any = next((kind for kind in public.__mro__ if name in vars(kind)), object)
            function = vars(home).get(name)
            plain = getattr(function, "__func__", function)
            ours = home.__module__.startswith("privlearn.") and callable(plain)
            if ours and not hasattr(plain, "__explains__"):
                made = _explaining(plain)
                setattr(home, name, type(function)(made) if plain is not function else made)
    return public


def _explaining(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it was called: what is wrong is said there
            message = _message(function, args, named) if args else str(error)
        raise TypeError(message)

    call.__explains__ = True  # type: ignore[attr-defined]
    return call


def _message(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> str:
    from inspect import Parameter, signature  # takes long to import

    owner, args = args[0], args[1:]
    kind = owner if isinstance(owner, type) else type(owner)
    makes = function.__name__ == "__init__"
    try:
        hints = get_type_hints(kind if makes and is_dataclass(kind) else function)
    except NameError:  # one that only type checkers import
        hints = {}
    title = kind.__name__ if makes else f"{kind.__name__}.{function.__name__}"
    called = "mechanism" if function.__name__ == "release" else "model"
    example = title if makes or owner is kind else f"{called}.{function.__name__}"
    takes = dict(list(signature(function).parameters.items())[1:])
    by_name = [name for name, each in takes.items() if each.kind is Parameter.KEYWORD_ONLY]
    placed = [name for name in takes if name not in by_name]
    by_name = [name for name in by_name if name[0] != "_"]
    given = placed[: len(args)]
    problems, right = [], []
    for name, value in zip(placed, args, strict=False):
        right.append(_shown(value) if makes else name)
    for value in args[len(placed) :]:
        fits = [n for n in by_name if _accepts(hints.get(n), value)]
        names = " or ".join(f"{name}=" for name in fits or by_name)
        known = f" must be given by name, as {names}" if by_name else " is one argument too many"
        problems.append(f"{_shown(value)}{known}")
        right += [f"{name}={_shown(value)}" for name in fits if len(fits) == 1]
    for name, value in named.items():
        if name not in takes:
            problems.append(f"{name}= is no argument{_INSTEAD.get(name, '')}")
        elif name in given:
            problems.append(f"{name} is given twice")
        else:
            right.append(f"{name}={_shown(value)}" if makes else f"{name}={name}")
    for name, each in takes.items():
        if each.default is Parameter.empty and name not in (*given, *named):
            problems.append(f"{name} is missing")
            value = _EXAMPLES.get(name, name)
            plain = each.kind is Parameter.POSITIONAL_ONLY
            right.append(value if plain else f"{name}={value}")
    asked = _BUDGETS.intersection(named).difference(takes)
    optional = "budget" in takes and takes["budget"].default is not Parameter.empty
    if asked and optional and "budget" not in (*given, *named):
        right.insert(0, "ApproxDP(1, 1e-5)")
    names = ", ".join([*placed, *["*", *by_name] * bool(by_name)])
    return (
        f"{title}: {'; '.join(problems)}. It takes ({names}); right is, for example, "
        f"{example}({', '.join(right)})"
    )


def _accepts(hint: Any, value: Any) -> bool:
    """Whether it is one of the literals of a parameter, or of its one type."""
    return value in get_args(hint) if get_origin(hint) is Literal else hint is type(value)


def _shown(value: Any) -> str:
    """A number or text as it was given; other things may hold somebody's data."""
    return repr(value) if isinstance(value, int | float | str) and len(repr(value)) < 40 else "..."
