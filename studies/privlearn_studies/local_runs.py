"""Whole runs under local privacy: devices answer in noise, and a server learns prices.

Each simulated customer is quoted one price on the device, says yes or no to the device, and the
device sends one randomised message.  Both halves run here in one process, and share a public
configuration only: ``public/`` is what the server has, ``private/`` what devices and the operator
of the simulation have.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privlearn.accountants import LocalAccountant
from privlearn.accountants.shown_numbers import up
from privlearn.errors import DataError
from privlearn.learners.ldp_ols import LDPOLS
from privlearn.learners.ldp_sgd import LDPSGD
from privlearn.learners.local.client import LocalClient
from privlearn.learners.local.protocol import LocalBanditConfig, LocalLearner
from privlearn.learners.local.server import LocalServer
from privlearn.ledger import Ledger
from privlearn.losses.budget_texts import parse_local_budget
from privlearn.losses.budgets import ApproxDP, GaussianDP
from privlearn.reporting.figures import plot_running_averages
from privlearn.rows.domains import Array
from privlearn.runs.common import (
    Folders,
    Outcome,
    Progress,
    finish,
    write_curves,
    write_json,
    write_public,
)
from privlearn_studies.data.auto_loans import check_declared, cprm_market, load_cprm
from privlearn_studies.data.electricity import electricity_market
from privlearn_studies.local_config import LocalConfig
from privlearn_studies.rivals.local_nonprivate import LinUCB
from privlearn_studies.simulated.local_bandit import PulledArms, meet, play
from privlearn_studies.simulated.pricing import PricingMarket, shuffled

IN_TURN = 10
"""With weights for every price, ldp-ols quotes the first tenth of all customers the prices in turn:
answers are far noisier than its own default expects.  This and the two below were chosen on
simulated electricity customers with seeds 200 to 209."""

SHARE = 0.7
"""ldp-ols: the largest mean reward of electricity, as a share of the highest price."""

LOGIT = 2.0
"""ldp-sgd: the largest logit of a mean reward, which can lie between 12% and 88%."""

_HORIZONS = {"electricity": 50_000}
_HORIZON = 20_000


def run_local(config: LocalConfig, out: Path, progress: Progress) -> Outcome:
    """Serves simulated customers; leaves a public and a private folder.

    A run that is killed leaves both ledgers, which can be audited, and the configuration, with
    which `LocalServer.resume` has the model of its last batch.

    Raises:
        DataError: the file cannot be used, or the folder not written.
        PrivlearnError, ValueError: the settings do not go together; nothing is written then.
    """
    market, plain, facts = _market(config)
    bandit = LocalBanditConfig(name=_name(config), method=_method(config, market))
    folders = Folders.create(out)
    (folders.public / "config.json").write_text(bandit.model_dump_json(indent=1), "utf-8")
    horizon = market.users.horizon
    accounts: dict[str, LocalAccountant[Any]] = {
        place: LocalAccountant(
            parse_local_budget(config.budget),
            users=range(horizon),
            ledger=Ledger.create(path),
            noise=config.noise(stream, streams=2),
            currency=GaussianDP if config.learner == "ldp-ols" else None,
            side_information=(*market.side_information, *config.side_information),
            attested=place == "server",
        )
        for stream, (place, path) in enumerate(
            {
                "server": folders.public / "ledger.db",
                "devices": folders.private / "devices.db",
            }.items()
        )
    }
    server = LocalServer(bandit, accounts["server"], by="privlearn, simulated devices")
    with LocalClient(bandit, accounts["devices"]) as client:
        arms = meet(client, server, market.users, progress("private", horizon))
    accounts["devices"].close()
    _write_public(folders, server, market)
    played = {f"private ({config.budget})": arms, "non-private": reference(plain)}
    lines = facts + _write_private(folders.private, market, played)
    write_json(
        folders.private / "devices.json",
        {"mended": client.diagnostics.counts, "messages": list(client.diagnostics.messages)},
    )
    rejected = sum(server.rejected.values())
    size = bandit.message_report(warming=False).size
    released = [
        f"{server.heard} customers sent one message each, at most {24 + 4 * size} bytes and "
        f"{_promise(config)}; {rejected} rejected",
        f"the last model quotes, in {market.unit}: "
        + "; ".join(f"{price:g} at {name}" for name, price in quotes(server, market).items()),
    ]
    held = "ledger of attestations, configuration, certificate, model"
    return Outcome(finish(folders, accounts["server"]), released, lines, folders, held)


def _promise(config: LocalConfig) -> str:
    budget = parse_local_budget(config.budget)
    delta = up(float(budget.delta)) if isinstance(budget, ApproxDP) else "0"
    return f"(ε = {up(float(budget.amounts[0]))}, δ = {delta})-locally private"


def _name(config: LocalConfig) -> str:
    return "electricity" if config.data == "electricity" else "auto-loans"


def _market(config: LocalConfig) -> tuple[PricingMarket, PricingMarket, list[str]]:
    """The customers, the same without coins, and what the operator should know of the data."""
    horizon = config.horizon or _HORIZONS.get(config.data, _HORIZON)
    if config.data == "electricity":
        plain = electricity_market(config.seed, horizon=horizon)
        coins = electricity_market(config.seed, horizon=horizon, coins=True)
        return coins if config.learner == "ldp-sgd" else plain, plain, []
    if not Path(config.data).is_file():
        raise DataError(
            f"data = {config.data!r}: must be electricity, or a file of CPRM auto loans; there is "
            "no such file"
        )
    check_declared(config.declare_public)
    loans = load_cprm(
        config.data, declare_public=config.declare_public, monthly_rate=config.monthly_rate
    )
    market = shuffled(cprm_market(loans, seed=config.seed, horizon=horizon), config.seed)
    facts = [
        f"{len(loans.price)} loans, {loans.applied.mean():.1%} taken; {loans.inside:.1%} of the "
        "imputed prices lie in the range that is quoted (the rest is extrapolated)"
    ]
    return market, market, facts


def _method(config: LocalConfig, market: PricingMarket) -> LocalLearner:
    budget = parse_local_budget(config.budget)
    public = market.users.public
    if isinstance(budget, ApproxDP):
        epsilon, delta = float(budget.epsilon), float(budget.delta)
        if market.users.shared:
            return LDPOLS(**public, epsilon=epsilon, delta=delta)
        in_turn = market.users.horizon // IN_TURN
        return LDPOLS(
            **public, epsilon=epsilon, delta=delta, theta_bound=SHARE, warm_up_users=in_turn
        )
    epsilon = float(budget.amounts[0])
    return LDPSGD(**public, epsilon=epsilon, link=market.users.link, theta_bound=LOGIT)


def reference(market: PricingMarket) -> PulledArms:
    """What LinUCB quotes the same customers, from their answers as they are; **not private**."""
    users = market.users
    sizes: Any = {name: users.public[name] for name in ("dim", "n_arms", "shared", "horizon")}
    return play(LinUCB(**sizes), users)


def quotes(server: LocalServer, market: PricingMarket) -> dict[str, float]:
    """Prices that the published model quotes to the market's made-up customers."""
    contexts = np.stack(list(market.examples.values()))
    scores = server.config.method.scores(server.model().arrays, contexts)
    return dict(zip(market.examples, market.prices[scores.argmax(axis=1)].tolist(), strict=True))


# Files --------------------------------------------------------------------------------------------


def _write_public(folders: Folders, server: LocalServer, market: PricingMarket) -> None:
    arrays = server.model().arrays
    model = {
        "prices": market.prices.tolist(),
        "features": market.feature_names,
        "objective": market.objective,
        "model": {name: np.asarray(array).tolist() for name, array in arrays.items()},
        "quotes": quotes(server, market),
    }
    write_public(folders, {"model.json": model})


def _write_private(
    private: Path, market: PricingMarket, played: Mapping[str, PulledArms]
) -> list[str]:
    """Curves and figures of all policies, from expectations that only a simulation knows."""
    lines = []
    for name, values, unit in _measures(market):
        curves = {who: market.got(arms, values) for who, arms in played.items()}
        curves["best fixed price"] = values[:, int(values.sum(axis=0).argmax())]
        curves["random price"] = values.mean(axis=1)
        best = values.max(axis=1)
        _write_curves(private / f"{name}.csv", curves, best)
        picture = private / f"{name}.png"
        plot_running_averages(picture, curves, "customers served", f"expected {name}{unit}")
        lines.append(
            f"expected {name} per customer{unit}; {best.mean():.4g} at everybody's best price"
        )
        lines += [
            f"  {who}: {curve.mean():.4g}, first tenth {_tenth(curve):.4g}, last tenth "
            f"{_tenth(curve[::-1]):.4g}; regret {(best - curve).sum():.0f}"
            for who, curve in curves.items()
        ]
    return lines


def _measures(market: PricingMarket) -> list[tuple[str, Array, str]]:
    """Name, expectation of every price for every customer, and unit; the objective first."""
    revenue = ("revenue", market.revenue, f", {market.unit}")
    if market.objective != "acceptance":
        return [revenue]
    return [("acceptance", market.acceptance, ""), revenue]


def _tenth(values: Array) -> float:
    return float(values[: max(len(values) // 10, 1)].mean())


def _write_curves(path: Path, curves: Mapping[str, Array], best: Array) -> None:
    """Means and total regret of every policy."""
    customers, most = np.arange(1, len(best) + 1), np.cumsum(best)
    columns: dict[str, Array] = {}
    for name, values in curves.items():
        total = np.cumsum(values)
        columns |= {f"{name}: mean": total / customers, f"{name}: regret": most - total}
    write_curves(path, "customers", columns)
