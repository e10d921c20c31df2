"""What the settings of every run have."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from privlearn.noise import NoiseSource


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
