"""Former names: importing one answers with the new one, for one release.

A name that moved is an error with the new place in its message, never a silent alias: what stands
in a program should be what stands in the documentation.  It is an `AttributeError` of the package,
so that `hasattr` says that the name is not there.  An import takes that for a module that it has to
look for, and the search for modules answers with an `ImportError`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

_MODULES = {
    "_cho_sun": "papers.cho_sun.experiments",
    "_han2021": "papers.han2021.experiments",
    "_han2021_reproduction": "papers.han2021.reproduction",
    "_han_convex": "papers.han2022.experiments",
    "_han_reproduction": "papers.han2022.reproduction",
    "_reproduction": "papers.cho_sun.tables",
    "accountants.ceiling": "accountants.per_user_charge",
    "accountants.conversion": "losses.conversion",
    "accountants.pricing": "accountants.epsilon_delta",
    "accountants.several": "accountants.multiple_accountants",
    "accountants.steps": "losses.steps",
    "accountants.tight": "accountants.tight_composition",
    "cells": "datasets.csv_lines",
    "checking.betting": "checking.sampling.sequential",
    "checking.black_box": "checking.sampling.check",
    "checking.candidates": "checking.default_neighbours",
    "checking.claims": "checking.sampling.claims",
    "checking.comparison": "checking.replay.comparison",
    "checking.domain_laws": "checking.laws.domains",
    "checking.drives": "checking.replay.protocols",
    "checking.events": "checking.sampling.event_bounds",
    "checking.faint": "checking.reduced_noise",
    "checking.gate": "checking.suite",
    "checking.laboratory": "checking.stub_accountant",
    "checking.law_case": "checking.laws.harness",
    "checking.law_report": "checking.laws.report",
    "checking.mechanism_laws": "checking.laws.mechanisms",
    "checking.openings": "checking.accountant_usage",
    "checking.outputs": "checking.sampling.encoding",
    "checking.populations": "checking.replay.populations",
    "checking.printer": "checking.replay.canonical",
    "checking.row_maps": "checking.laws.row_maps",
    "checking.shipped_learners": "checking.replay.shipped_learners",
    "checking.subjects": "checking.targets",
    "checking.supervision": "checking.isolation",
    "checking.tape": "checking.replay.recording",
    "checking.white_box": "checking.exact.check",
    "checking.white_box_additive": "checking.exact.additive",
    "checking.white_box_choices": "checking.exact.choices",
    "checking.white_box_laws": "checking.exact.distributions",
    "checking.white_box_losses": "checking.exact.loss_pairs",
    "checking.white_box_minimisers": "checking.exact.minimisers",
    "checking.white_box_probe": "checking.exact.probe",
    "checking.white_box_reports": "checking.exact.reports",
    "checking.white_box_streams": "checking.exact.streams",
    "checking.witness": "checking.sampling.distinguishers",
    "checking.zoo": "checking.faults",
    "conversions": "losses",
    "convex_experiments": "papers.han2022.competitors",
    "cprm": "datasets.auto_loans",
    "data": "datasets.files",
    "dp_events": "events.dp_accounting",
    "electricity": "datasets.electricity",
    "errata": "papers.errata",
    "event_pricing": "events.pricing",
    "expedia": "datasets.expedia",
    "experiments": "simulation.choice",
    "interruption": "cli.interruption",
    "learners.constraint_sets": "mechanisms.constraint_sets",
    "learners.convex_baselines": "baselines.convex",
    "learners.linear_bandits": "baselines.linear_bandits",
    "learners.local_baselines": "baselines.local",
    "learners.local_client": "local.client",
    "learners.local_formulas": "learners.links",
    "learners.local_messages": "local.messages",
    "learners.local_ols": "learners.ldp_ols",
    "learners.local_protocol": "local.protocol",
    "learners.local_references": "baselines.local_nonprivate",
    "learners.local_server": "local.server",
    "learners.local_sgd": "learners.ldp_sgd",
    "learners.local_tally": "local.batch_sums",
    "learners.references": "baselines.choice",
    "learners.scalar_losses": "mechanisms.scalar_objectives",
    "learners.tofw_ways": "learners.convex",
    "linear_bandit_market": "simulation.linear_bandit",
    "local_market": "simulation.local_bandit",
    "local_runs": "runs.local",
    "mechanisms.additive_reports": "mechanisms.noisy_report",
    "mechanisms.gaussian": "mechanisms.noisy_sum",
    "mechanisms.generalized_gaussian": "mechanisms.least_noise",
    "more_losses": "losses",
    "null_records": "runs.null_records",
    "objective_loss": "losses.minimizer",
    "opacus_bridge": "events.opacus",
    "pictures": "reporting.figures",
    "pricing_market": "simulation.pricing",
    "pytest_plugin": "checking.pytest_plugin",
    "report": "reporting.certificates",
    "reproduce": "papers.cho_sun.reproduction",
    "settings": "runs.configs",
    "ta_feng": "datasets.ta_feng",
    "table_runs": "runs.tables",
    "tables": "datasets.user_tables",
    "visible": "reporting.visible",
}
"""Modules, without ``privlearn.``."""

_NAMES = {
    "": {
        "Accountant": "privlearn.contract.protocols.Accountant",
        "ApproxLoss": "privlearn.losses.ApproxLoss",
        "Billboard": "privlearn.contract.billboard.Billboard",
        "BoundedRange": "privlearn.losses.BoundedRangeLoss",
        "Budget": "privlearn.losses.budgets.Budget",
        "ByArrival": "privlearn.losses.PerArrivalLoss",
        "Calibration": "privlearn.values.adjacency.Calibration",
        "Composed": "privlearn.losses.ComposedLoss",
        "Currency": "privlearn.losses.budgets.Currency",
        "DiscreteGaussian": "privlearn.losses.DiscreteGaussian",
        "DiscreteLaplace": "privlearn.losses.DiscreteLaplace",
        "Domain": "privlearn.rows.domains.Domain",
        "Gaussian": "privlearn.losses.GaussianLoss",
        "GaussianNoise": "privlearn.noise.GaussianNoise",
        "GeneralizedGaussian": "privlearn.losses.GeneralizedGaussian",
        "Laplace": "privlearn.losses.LaplaceLoss",
        "LaplaceNoise": "privlearn.noise.LaplaceNoise",
        "Loss": "privlearn.losses.Loss",
        "MayFail": "privlearn.losses.FailingLoss",
        "Mechanism": "privlearn.contract.protocols.Mechanism",
        "MinimizerLoss": "privlearn.losses.MinimizerLoss",
        "Noise": "privlearn.noise.Noise",
        "PrivlearnError": "privlearn.errors.PrivlearnError",
        "PureEpsilon": "privlearn.losses.PureLoss",
        "RandomizedResponse": "privlearn.losses.RandomizedResponse",
        "Receipt": "privlearn.contract.tokens.Receipt",
        "RenyiCurve": "privlearn.losses.RenyiCurve",
        "Shown": "privlearn.contract.billboard.Shown",
        "Source": "privlearn.rows.Source",
        "SubsampledGaussian": "privlearn.losses.SubsampledGaussian",
        "ZCDPLoss": "privlearn.losses.ZCDPLoss",
    },
    "losses": {
        "BoundedRange": "privlearn.losses.BoundedRangeLoss",
        "ByArrival": "privlearn.losses.PerArrivalLoss",
        "Composed": "privlearn.losses.ComposedLoss",
        "Gaussian": "privlearn.losses.GaussianLoss",
        "Laplace": "privlearn.losses.LaplaceLoss",
        "MayFail": "privlearn.losses.FailingLoss",
        "PureEpsilon": "privlearn.losses.PureLoss",
    },
    "learners": {
        "LDPGLOC": "privlearn_studies.rivals.local.LDPGLOC",
        "LDPUCB": "privlearn_studies.rivals.local.LDPUCB",
        "LocalBandit": "privlearn.learners.local.LocalBanditConfig",
        "LocalClient": "privlearn.learners.local.LocalClient",
        "LocalServer": "privlearn.learners.local.LocalServer",
        "Message": "privlearn.learners.local.Message",
        "Method": "privlearn.learners.local.LocalLearner",
        "Model": "privlearn.learners.local.Model",
        "NO_ITEM": "privlearn.mechanisms.choice_model.NO_ITEM",
        "Tally": "privlearn.learners.local.BatchSums",
        "ConstraintSet": "privlearn.mechanisms.ConstraintSet",
        "LpBall": "privlearn.mechanisms.LpBall",
        "Polytope": "privlearn.mechanisms.Polytope",
        "Simplex": "privlearn.mechanisms.Simplex",
        "CustomObjective": "privlearn.mechanisms.CustomObjective",
        "LogisticObjective": "privlearn.mechanisms.LogisticObjective",
        "ScalarObjective": "privlearn.mechanisms.ScalarObjective",
        "SquaredObjective": "privlearn.mechanisms.SquaredObjective",
        "CustomLoss": "privlearn.mechanisms.CustomObjective",
        "LogisticLoss": "privlearn.mechanisms.LogisticObjective",
        "ScalarLoss": "privlearn.mechanisms.ScalarObjective",
        "SquaredLoss": "privlearn.mechanisms.SquaredObjective",
    },
    "mechanisms": {
        "GaussianReport": "privlearn.mechanisms.NoisyReport",
        "GaussianSum": "privlearn.mechanisms.NoisySum",
        "GeneralizedGaussianSum": "privlearn.mechanisms.NoisySum",
        "Huber": "privlearn.mechanisms.LinearObjective.huber",
        "LaplaceReport": "privlearn.mechanisms.NoisyReport",
        "Logistic": "privlearn.mechanisms.LinearObjective.logistic",
        "OneOfKStream": "privlearn.mechanisms.PrefixSum, over privlearn.rows.domains.OneOf",
        "Poisson": "privlearn.mechanisms.LinearObjective.poisson",
    },
    "datasets": {
        "Cars": "privlearn.runs.cars.Cars",
        "People": "privlearn.runs.cars.People",
        "CarChoices": "privlearn.runs.cars.CarChoices",
        "published_features": "privlearn.runs.cars.published_features",
        "car_features": "privlearn.runs.cars.car_features",
        "split": "privlearn.runs.cars.split",
        "catalogue": "privlearn.runs.cars.catalogue",
        "draw_people": "privlearn.runs.cars.draw_people",
        "market_features": "privlearn.runs.cars.market_features",
        "load_car_choices": "privlearn.runs.cars.load_car_choices",
    },
    "checking": {
        "Assorting": "privlearn.checking.AssortmentLearner",
        "Drive": "privlearn.checking.InteractionProtocol",
        "Exact": "privlearn.checking.ExactResult",
        "Subject": "privlearn.checking.SamplingTarget",
        "subject_of": "privlearn.checking.sampling_target",
    },
    "checking.laws": {
        "check_domain": "privlearn.checking.check_domain",
        "check_mechanism": "privlearn.checking.check_mechanism",
        "mechanism_checks": "privlearn.checking.mechanism_checks",
    },
    "checking.replay": {
        "assert_noninterference": "privlearn.checking.assert_noninterference",
        "assert_pipeline_noninterference": "privlearn.checking.assert_pipeline_noninterference",
    },
    "runs": {
        "Folders": "privlearn.runs.common.Folders",
        "Outcome": "privlearn.runs.common.Outcome",
        "RunConfig": "privlearn.runs.configs.ChoiceConfig",
        "run_logged": "privlearn.runs.choices.run_choices",
        "run_market": "privlearn.runs.choices.run_choices",
    },
}
"""Names that a package no longer exports, by package."""


def answer(package: str) -> Callable[[str], NoReturn]:
    """``__getattr__`` of a package, which says of a former name where it is now.

    Raises:
        AttributeError: always.
    """
    names = _NAMES.get(package.partition(".")[2], {})

    def find(name: str) -> NoReturn:
        if name in names:
            raise AttributeError(f"{package}.{name} is now {names[name]}", name=name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)

    return find


class _FormerModules:
    """Comes last in the search for modules, when there is none of a name.

    Of a package, ``from package import name`` also looks for a module, unless `hasattr` finds it.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        whole, _, rest = name.partition(".")
        if whole != "privlearn":
            return None
        package, _, last = rest.rpartition(".")
        new = (
            f"privlearn.{_MODULES[rest]}" if rest in _MODULES else _NAMES.get(package, {}).get(last)
        )
        if new is not None:
            raise ImportError(f"{name} is now {new}", name=name)
        return None


def install() -> None:
    """Lets imports of former modules answer."""
    if _FormerModules not in sys.meta_path:
        sys.meta_path.append(_FormerModules)
