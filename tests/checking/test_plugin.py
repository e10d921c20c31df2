"""The pytest plugin in a project of somebody else's, with and without xdist."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from privlearn.checking.laws.check import check_mechanism
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.rows.domains import Ball

pytest_plugins = ("pytester",)
ROOT = Path(__file__).parents[2]
ARGS = ("-p", "no:cacheprovider", "-p", "no:randomly")

CHECKS = """
import numpy as np
import pytest
from privlearn import PureDP, ZCDP
from privlearn.checking.budgets import assert_budget
from privlearn.checking import check_mechanism

PAIR = ([0.0], [1.0])

def honest(data, rng):
    return sum(data) + rng.laplace(0, 1)

def half(data, rng):
    return sum(data) + rng.laplace(0, 0.5)

def test_honest():
    check_mechanism(honest, PureDP(1), neighbours=PAIR, samples=1000)

def test_half():
    check_mechanism(half, PureDP(1), neighbours=PAIR, samples=4000)

def test_budget():
    assert_budget(lambda a: a.issue(ZCDP(1), users=range(3), label="x"), at_most=ZCDP(2))

def test_nothing_private():
    assert 1 + 1 == 2
"""


@pytest.fixture(scope="module", autouse=True)
def _everything_is_imported() -> None:
    """Sessions inside this one forget what they import, which NumPy and others cannot bear."""
    check_mechanism(NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.5")), samples=400)


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """A session of its own, which finds the plugin by its entry point."""
    return pytester.runpytest_inprocess(*ARGS, *args)


def run_apart(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """The same in a fresh process, which rewrites no module for its bare assertions."""
    return pytester.runpytest_subprocess(*ARGS, "--assert=plain", *args)


def test_the_entry_point_is_declared_and_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert settings["entry-points"]["pytest11"] == {"privlearn": "privlearn.checking.pytest_plugin"}
    assert settings["optional-dependencies"]["checking"] == ["pytest>=8"]
    (found,) = [e for e in entry_points(group="pytest11") if e.name == "privlearn"]
    assert found.value == "privlearn.checking.pytest_plugin"


def test_failures_and_passes_of_a_project_elsewhere(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_private=CHECKS)
    result = run_apart(pytester)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*PrivacyViolation: half fails 2 of 2 checks",
            "*event: *",
            "*reproduce: check_mechanism(half, PureDP('1'), neighbours=neighbours, samples=4000, *",
            "*- privacy evidence -*",
            "*= privacy checks =*",
            "honest: 2 of 2 checks passed; exact: WINDOW*samples: * at confidence 0.99 *",
            "half: 0 of 2 checks passed; exact: VIOLATED; samples: VIOLATED, * confidence 0.99 *",
            "<lambda>: users 0..2 used ZCDP('1') of ZCDP('2') (0.5 times)",
        ]
    )
    # the log ends at the line of the test: no frame of the checks stands below it
    result.stdout.fnmatch_lines(["test_private.py:*: PrivacyViolation"])
    assert "def check_mechanism(" not in result.stdout.str()


@pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="pytest-xdist is missing")
def test_the_summary_comes_back_from_workers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_private=CHECKS)
    result = run(pytester, "-n", "2", "--assert=plain", "--privacy-confidence", "0.9")
    result.assert_outcomes(passed=3, failed=1)
    text = result.stdout.str()
    assert text.count("honest: 2 of 2 checks passed; exact: ") == 1
    assert text.count("half: 0 of 2 checks passed; exact: VIOLATED") == 1
    assert "at confidence 0.9 " in text
    assert "- privacy evidence -" in text


def test_confidence_comes_from_marker_option_or_default(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from privlearn import PureDP
        from claims_alone import assert_private

        def level(**options):
            f = lambda data, rng: rng.random()
            found = assert_private(f, PureDP(1), neighbours=(0, 1), samples=100, **options)
            return found.confidence

        def test_option():
            assert level() == 0.8
            assert level(confidence=0.7) == 0.7

        @pytest.mark.privacy(confidence=0.95)
        def test_marker():
            assert level() == 0.95

        @pytest.mark.privacy(confidence=0.95)
        class TestClosest:
            @pytest.mark.privacy(seconds=60)
            def test_both(self):
                assert level() == 0.95

            @pytest.mark.privacy(confidence=0.6)
            def test_own(self):
                assert level() == 0.6
        """
    )
    run(pytester, "--strict-markers", "--privacy-confidence=0.8").assert_outcomes(passed=4)
    run(pytester, "-k", "Closest or test_marker").assert_outcomes(passed=3, deselected=1)


@pytest.mark.parametrize("level", ["0", "1", "1.5", "0.5", "nan"])
def test_a_confidence_that_is_none_is_refused(pytester: pytest.Pytester, level: str) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = run(pytester, f"--privacy-confidence={level}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--privacy-confidence = *must lie strictly between 0.5 and 1*"])


@pytest.mark.parametrize(
    ("marker", "complaint"),
    [
        ("privacy(seconds=0)", "must be above 0"),
        ("privacy(seconds='1')", "must be above 0"),
        ("privacy(1)", "takes seconds=... and confidence=... only"),
        ("privacy(minutes=1)", "takes seconds=... and confidence=... only"),
        ("privacy(confidence=2)", "must lie strictly between 0.5 and 1"),
    ],
)
def test_a_marker_that_says_something_else_is_refused(
    pytester: pytest.Pytester, marker: str, complaint: str
) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_it(): pass")
    result = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert complaint in result.stderr.str()


def test_the_time_budget_fails_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import time
        import pytest
        from privlearn import PureDP
        from claims_alone import assert_private

        @pytest.mark.privacy(seconds=30)
        def test_quick():  # first, as it imports what the others use, too
            assert_private(lambda d, rng: rng.random(), PureDP(1), neighbours=(0, 1), samples=100)

        @pytest.mark.privacy(seconds=0.3)
        def test_hangs():
            while True:
                time.sleep(0.01)

        @pytest.mark.privacy(seconds=0.3)
        def test_hangs_inside():
            def slow(data, rng):
                time.sleep(0.05)
                return rng.random()
            assert_private(slow, PureDP(1), neighbours=(0, 1))

        def test_no_limit_is_left_over():
            time.sleep(0.5)
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        ["*::test_hangs did not end within 0.3 seconds; its privacy marker allows 0.3 s"]
    )
    assert "test_hangs_inside" in result.stdout.str()
    assert "slow" in result.stdout.str()


def test_a_limit_that_no_timer_keeps_fails_the_test_at_its_end(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import signal
        import time
        import pytest

        @pytest.mark.privacy(seconds=0.2)
        def test_without_alarm():
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(0.4)
        """
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*its privacy marker allows 0.2 s*"])


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import numpy as np
        import pytest
        from privlearn import ApproxDP, Ball, GaussianDP, Rows, ZCDP
        from privlearn.mechanisms import NoisySum

        def release(accountant):
            total = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.5"))
            token = accountant.issue(total.loss(), users=range(5), label="sum")
            return total.release(Rows.seal(np.ones((5, 2)), users=range(5)), token).value

        def test_accountants(privacy_accountant):
            first = privacy_accountant(ZCDP(1))
            assert first.trust.value == "central"
            assert first.users == range(100)
            assert first.noise.simulated
            second = privacy_accountant(ZCDP(1), users=range(5))
            assert second.users == range(5)
            assert not np.array_equal(release(first), release(second)), "seeds of their own"
            assert privacy_accountant(ZCDP(1), trust="joint").trust.value == "joint"
            assert privacy_accountant(ZCDP(1), trust="local").trust.value == "local"
            promise = privacy_accountant(ApproxDP(1, 1e-6), currency=GaussianDP)
            assert isinstance(promise.budget, GaussianDP)
            with pytest.raises(ValueError):
                privacy_accountant(ZCDP(1), trust="nobody")

        def test_seed_fails(seeded_noise, privacy_accountant):
            print("first", seeded_noise.pool().words(1)[0], seeded_noise.name)
            privacy_accountant(ZCDP(1))
            assert False

        def test_other_seed_fails(seeded_noise):
            print("second", seeded_noise.pool().words(1)[0], seeded_noise.name)
            assert False
        """
    )
    results = [run(pytester), run(pytester)]
    said: list[list[str]] = []
    for result in results:
        result.assert_outcomes(passed=1, failed=2)
        result.stdout.fnmatch_lines(
            [
                "*- privacy noise -*",
                "seeded_noise: NoiseSource.simulation(*)",
                "privacy_accountant(ZCDP('1')): NoiseSource.simulation(*)",
            ]
        )
        told = ("first ", "second ", "seeded_noise:")
        said.append([line for line in result.stdout.lines if line.startswith(told)])
    assert said[0] == said[1], "the same noise in every run"
    assert said[0][0].split()[1:] != said[0][2].split()[1:], "and another one in every test"


def test_without_the_plugin_the_assertions_work_all_the_same(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_private=CHECKS)
    result = run_apart(pytester, "-p", "no:privlearn")
    result.assert_outcomes(passed=3, failed=1)
    text = result.stdout.str()
    assert "PrivacyViolation: half fails 2 of 2 checks" in text
    assert "= privacy checks =" not in text
    assert (
        "privacy_accountant" not in run(pytester, "-p", "no:privlearn", "--fixtures").stdout.str()
    )


def test_projects_that_do_not_use_it_see_nothing_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_was_imported():
            heavy = {"privlearn.checking.laws.check", "privlearn.accountants", "scipy.stats"}
            assert not heavy & set(sys.modules)

        def test_fails():
            assert False
        """
    )
    result = run_apart(pytester, "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=1, failed=1)
    assert "privacy" not in result.stdout.str()


def test_the_settings_do_not_outlive_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from privlearn.checking import session as check_session

        seen = []

        @pytest.mark.privacy(confidence=0.75, seconds=9)
        def test_one():
            seen.append(check_session.current())
            assert seen[0].confidence == 0.75
            assert 0 < seen[0].seconds_left <= 9

        def test_two():
            assert check_session.current() is not seen[0]
            assert check_session.current().confidence is None
            assert check_session.current().seconds_left is None
            assert seen[0].seconds_left is None

        @pytest.fixture(scope="session", autouse=True)
        def ends():
            yield
            print("at the end", check_session.current().confidence)
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_lines_are_in_the_junit_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_private=CHECKS)
    run(pytester, "--junitxml=report.xml", "-k", "honest")
    text = (pytester.path / "report.xml").read_text("utf-8")
    assert 'name="privacy"' in text
    assert "honest: 2 of 2 checks passed" in text


def test_importing_the_plugin_is_light() -> None:
    script = (
        "import sys, privlearn; before = set(sys.modules); "
        "import privlearn.checking.pytest_plugin; "
        "print(*sorted(m for m in set(sys.modules) - before if not m.startswith(('_pytest', "
        "'pytest', 'pluggy', 'iniconfig', 'packaging'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    room = {"privlearn.checking", "privlearn.checking.pytest_plugin", "privlearn.checking.session"}
    assert {name for name in loaded if name.startswith("privlearn.checking")} == room
    heavy: Any = ("numpy", "scipy", "privlearn.accountants", "hypothesis")
    assert not [name for name in loaded if name.startswith(heavy)]
