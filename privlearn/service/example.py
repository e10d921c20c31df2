"""A service that is ready to start: configuration, access tokens and a key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal, NamedTuple

from privlearn.errors import DataError
from privlearn.service import access

NAME: Final = "service.toml"
TOKENS: Final = (("shop", "serve"), ("prometheus", "watch"), ("operator", "operator"))

_NO_SIDE_INFORMATION: Final = """\
side_information = []     # what was computed from these people's data and is declared public
"""
_DELAY: Final = """\
delay = 20                # about as many visitors as come while one decides: not counted
"""
_LATE: Final = """\
late_offers = 20          # a full batch waits for late answers until so many more offers
"""
_PEOPLE: Final = """
[people]
path = "people.db"        # secret: who came how often
most = 5                  # visits of a person that are learned from
"""
_POOLED: Final = """
[people]
path = "people.db"        # secret: who came how often
most = 1                  # batches of a person that are learned from
pooled = true             # all visits of a person in a batch are one contribution
"""


class _Kind(NamedTuple):
    does: str
    learner: str
    budget: str = "rho=1"
    late: str = _LATE
    people: str = _PEOPLE


Example = Literal["cars", "glm", "bandit", "arms", "test"]

_KINDS: Final[dict[Example, _Kind]] = {
    "cars": _Kind(
        "shows each visitor 10 of 100 real cars and learns what people like",
        """\
side_information = ["the car survey of McFadden and Train (2000): car profiles and feature scale"]

[learner]
name = "OnePassNewtonMNL"
n_items = 100
dim = 22
max_items = 10
""",
    ),
    "glm": _Kind(
        "shows each visitor one of up to 10 films and learns from their features which are liked",
        f"""\
{_NO_SIDE_INFORMATION}
[learner]
name = "OnePassNewtonGLM"
n_actions = 10            # of one visitor at most
dim = 5                   # features of each action
link = "logistic"         # rewards are 0 or 1; "linear", "probit", "poisson"
feature_scale = 1.0       # public; longer rows are shortened to it
reward_range = [0, 1]     # public; a reward outside of it is null
""",
        people=_POOLED,
    ),
    "bandit": _Kind(
        "pulls one of 5 arms for each visitor and learns which pays best for whom",
        f"""\
{_NO_SIDE_INFORMATION}
[learner]
name = "DPHDB"            # few of the numbers of a context matter; if all: "PrivateLeastSquares"
n_arms = 5
dim = 20
context_bound = 1.0       # public; larger numbers are clamped
reward_bound = 1.0        # public; larger rewards are clipped
""",
    ),
    "arms": _Kind(
        "shows each visitor one of 5 banners and learns which is clicked most",
        f"""\
{_NO_SIDE_INFORMATION}
[learner]
name = "PrivateArms"
n_arms = 5
reward_range = [0, 1]     # public; a reward outside of it is null
{_DELAY}""",
        "epsilon=5",
        "",
    ),
    "test": _Kind(
        "shows each visitor the old page or the new one and tests, at any time, whether it helps",
        f"""\
{_NO_SIDE_INFORMATION}
[learner]
name = "PrivateTest"      # arm 0 is the control
n_arms = 2
alpha = 0.05              # chance of a false alarm, however often somebody looks
assume = "iid"            # visitors do not come back; "coin", with [people], where they do
reward_range = [0, 1]     # public; a reward outside of it is null
{_DELAY}""",
        "epsilon=1",
        "",
        "",
    ),
}

_TEXT: Final = """\
# A private learner that {does}.
# Names and numbers here are public; a name that does not exist is an error.

[http]
host = "127.0.0.1"        # other machines do not reach it; see exposed_host
port = {port}
workers = 2
drain = "2 s"             # at a stop: answers are still taken for so long

[access]
file = "access.json"      # privlearn access add {name} --name NAME --role serve
requests_per_second = 500.0  # of each token and resource, over all workers

[guarantee]
{budget:26}# of every person, with all visits
users = 10000             # visits in all
{learner}
[batches]
{late}late_time = "30 s"        # at the latest so long after its last offer

[ledger]
path = "ledger.db"        # public: anybody can audit a copy of it
{people}
[rows]
path = "rows.db"          # encrypted: what the open batch has answered
key_file = "rows.key"     # keep it elsewhere, and out of backups
"""


def write_example(folder: Path, *, port: int = 8350, of: Example = "cars") -> Path:
    """Writes a configuration into a new folder, with three access tokens in files of their own.

    Args:
        folder: a new or empty one.
        port: that the service is to listen at.
        of: "cars" (items and choices), "glm" (actions by their features), "bandit" (arms by
            contexts), "arms", or "test".

    Raises:
        DataError: the folder has contents, or cannot be written.
    """
    path = folder / NAME
    try:
        # sizes and times of what is in it tell when somebody came or answered
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise DataError(
                f"{folder} is not empty: name a new folder; what an example began goes on with "
                f"privlearn serve {path}"
            )
        kind = _KINDS[of]
        fields = {**kind._asdict(), "budget": f'budget = "{kind.budget}"'}
        text = _TEXT.format(port=port, name=NAME, **fields)
        path.write_text(text, encoding="utf-8")
        for name, role in TOKENS:
            _write_private(folder / f"{name}.token", access.add(folder / "access.json", name, role))
        _write_private(folder / "rows.key", os.urandom(32))
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error.strerror}") from None
    return path


def _write_private(path: Path, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
