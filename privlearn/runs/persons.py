"""Settings of all runs, and of those on files in which a column says whose row it is.

The text of a cell is the id, as it stands between the commas; spaces around it do not count.  A row
without an id is nobody's, and null.  The same text is the same person, and any other text is
another one, a mistyped id among them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from privlearn.errors import DataError
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.participation import Participation

_NOT_COVERED: Final = (
    "not covered: what the order and number of rows tells, as to when and how often somebody came; "
    "and whoever has several ids, or a mistyped one, has the guarantee of so many persons together"
)


class RunConfig(BaseModel):
    """What every run has."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of simulated people, public coins and the order of shipped rows; never of noise."""
    simulate_noise: Annotated[int, Field(ge=0)] | None = None
    """Seed of reproducible noise; protects nobody, and the ledger is a simulation."""
    side_information: tuple[str, ...] = ()
    """What was computed from these data and is declared public."""

    def noise(self, stream: int = 0, streams: int = 1) -> NoiseSource:
        """A noise source; simulated ones of different streams share no randomness."""
        if self.simulate_noise is None:
            return NoiseSource.secure()
        return NoiseSource.simulation(streams * self.simulate_noise + stream)


class VisitConfig(RunConfig):
    """Settings of a run in which a person may have several rows, each of which counts by itself."""

    people: str | None = None
    """Column of your file that says whose row it is; its text is the id.  The guarantee is then for
    each person, with all rows; without it, for each row."""
    most: Annotated[int, Field(ge=1)] | None = None
    """The most rows of one person that are learned from."""
    apart: Annotated[int, Field(ge=1)] | None = None
    """Rows from one that is learned from to the next of the same person, at least."""
    registry: str | None = None
    """New file that keeps who came and how often; it is secret, and of this one run.  Default: in
    memory, gone at the end."""

    @model_validator(mode="after")
    def _fits_people(self) -> Self:
        if self.people is None:
            for name in ("most", "pooled", "per_batch", "apart", "registry"):
                if getattr(self, name, None) not in (None, False):
                    raise ValueError(f"{name}: needs people, the column that says whose row it is")
            return self
        if not self.people:
            raise ValueError("people = '': must name the column that says whose row it is")
        if self.most is None:
            raise ValueError(f"most: must be given with people: {self._counted}")
        self.rule()
        return self

    @property
    def _counted(self) -> str:
        return "how many rows of one person are learned from at most"

    def rule(self) -> Participation | None:
        """The rule of participation; None where each row is a person."""
        if self.people is None or self.most is None:
            return None
        return Participation(self.most, self.apart or 1)

    def counted(self) -> str:
        """What of a person is learned from, in words."""
        return "at most 1 row" if self.most == 1 else f"at most {self.most} rows"


class PersonConfig(VisitConfig):
    """Settings of a run that has public batches, in which rows of a person may be counted."""

    most: Annotated[int, Field(ge=1)] | None = None
    """The most rows of one person that are learned from; with --pooled, of the learner's public
    batches (epochs)."""
    pooled: bool = False
    """All rows of a person in one public batch become one, mostly their mean, and --most counts
    batches. Not for tofw --method plain, hdb without --sparse, nor glm with --arm."""
    per_batch: Annotated[int, Field(ge=1)] | None = None
    """The most rows of one person that are learned from in one public batch."""

    @property
    def _counted(self) -> str:
        return f"{super()._counted}; with pooled, in how many public batches"

    def rule(self) -> Participation | None:
        if self.people is None or self.most is None:
            return None
        return Participation(self.most, self.apart or 1, self.per_batch, self.pooled)

    def counted(self) -> str:
        some = "1 public batch" if self.most == 1 else f"{self.most} public batches"
        found = f"the rows of at most {some}, which become one row in each"
        if not self.pooled:
            found = super().counted()
        if self.per_batch is not None:
            found += f", at most {self.per_batch} in one public batch"
        return found


def check_registry(config: VisitConfig, out: Path, *, resume: bool = False) -> None:
    """Checks that there is room for the registry before anything is written in ``out``.

    Raises:
        DataError: something stands there, or it would stand in the public folder, or there is no
            such folder, and the run makes none.
    """
    begun = resume and (out / "public" / "ledger.db").exists()
    if config.registry is None:
        if begun and config.people is not None:
            raise DataError(
                "registry: who came was kept in memory and ended with the run that was cut off; "
                "name a file with --registry in a new run"
            )
        return
    public, parents = (out / "public").resolve(), Path(config.registry).resolve().parents
    if public in parents:
        raise DataError(
            f"registry = {config.registry!r}: it is secret, as is its key, and cannot stand in the "
            f"public folder {out / 'public'}; name a file elsewhere, such as in {out / 'private'}"
        )
    if not parents[0].is_dir() and parents[0] not in (out.resolve(), (out / "private").resolve()):
        raise DataError(f"registry = {config.registry!r}: there is no such folder")
    if Path(config.registry).exists() and not begun:
        raise DataError(
            f"registry = {config.registry!r}: there is a file; it belongs to the run that made it, "
            "and a new run needs a new one, in which nobody has come yet"
        )


def registry_of(config: VisitConfig, *, begun: bool) -> People | None:
    """A registry, new or that of the run that was begun; None where each row is a person."""
    rule = config.rule()
    if rule is None:
        return None
    if config.registry is None:
        return People.memory(rule)
    return People.open(config.registry) if begun else People.create(config.registry, rule)


def told(config: VisitConfig) -> list[str]:
    """What the guarantee of the run is about, in words; public."""
    if config.people is None:
        return []
    apart = f", {config.apart:,} or more rows apart" if config.apart else ""
    return [
        f"the guarantee is for each person (a text in column {config.people!r}) with all rows; "
        f"learned from are {config.counted()}{apart}, and nobody is told which",
        _NOT_COVERED,
    ]
