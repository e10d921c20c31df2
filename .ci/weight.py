"""Lines, words and seconds beside those that `weight.toml` allows; ends with 1 if there are more.

    python .ci/weight.py [--suite REPORT]   # of pytest --junitxml

The package may grow by 5% and the tests by 20 seconds.  Whoever needs more changes `weight.toml`,
and says why in the commit message.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
ALLOWED = Path(__file__).with_name("weight.toml")
LAYERS = "accountants", "learners", "mechanisms"
GROWTH = 1.05
"""Of the lines of the package, and of the words of its documents."""
SECONDS = 20.0
"""By which the tests may be slower."""
CORES = 2
"""On which the seconds of `weight.toml` were measured."""
STEPS = 3_000_000
"""Of a loop that says how fast the machine is."""


def lines() -> Counter[str]:
    """Of Python, by room of the package; tests and studies each as a whole."""
    found: Counter[str] = Counter()
    for name in _tracked():
        if name.endswith((".py", ".pyi")) and (room := _room(Path(name).parts)):
            found[room] += len((ROOT / name).read_bytes().splitlines())
    return found


def _room(parts: tuple[str, ...]) -> str:
    if parts[0] == "privlearn":
        return parts[1] if len(parts) > 2 else "privlearn"
    if parts[0] in LAYERS or parts[0] == "benchmarks":
        return parts[0]
    if "tests" in parts[:2]:
        return "tests"
    return "studies" if parts[0] == "studies" else ""


def words() -> int:
    """Of all pages of the site."""
    pages = [name for name in _tracked() if name.startswith("docs/") and name.endswith(".md")]
    return sum(len((ROOT / page).read_text("utf-8").split()) for page in pages)


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


def seconds(report: Path) -> tuple[float, Counter[str]]:
    """Of the whole suite, and of its folders, where all cores count together."""
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    folders: Counter[str] = Counter()
    for case in suite.iter("testcase"):
        parts = case.get("classname", "").split(".")
        folders["studies" if parts[0] == "studies" else parts[1]] += float(case.get("time", 0))
    return float(suite.get("time", 0)), folders


def loop() -> float:
    """Seconds of CPU that a fixed loop takes: a slow machine is not a slow suite."""
    begun, total = time.process_time(), 0
    for number in range(STEPS):
        total += number % 7
    return time.process_time() - begun


def table(title: str, now: dict[str, Any], before: dict[str, Any]) -> None:
    """Prints what is beside what was."""
    print(f"\n{title:24}{'now':>10}{'allowed for':>14}")
    for name in sorted({*now, *before}):
        print(f"{name:24}{now.get(name, 0):>10,.0f}{before.get(name, 0):>14,.0f}")


def main() -> None:
    """Prints all, and ends with 1 where there is more than was allowed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suite", type=Path, help="JUnit report of pytest")
    arguments = parser.parse_args()
    allowed = tomllib.loads(ALLOWED.read_text("utf-8"))
    now, problems = lines(), []
    apart = {"tests", "studies", "benchmarks"}
    sums = [sum(n for room, n in of.items() if room not in apart) for of in (now, allowed["lines"])]
    table(
        "lines",
        {**now, "all of the package": sums[0]},
        {**allowed["lines"], "all of the package": sums[1]},
    )
    if sums[0] > GROWTH * sums[1]:
        problems.append(f"the package has {sums[0]:,} lines, 5% more than {sums[1]:,}")
    pages, most = words(), allowed["words"]["docs"]
    table("words", {"docs": pages}, allowed["words"])
    if pages > GROWTH * most:
        problems.append(f"docs/ has {pages:,} words, 5% more than {most:,}")
    if arguments.suite is not None:
        took, folders = seconds(arguments.suite)
        table("seconds", folders, allowed["seconds"])
        limit, pace = allowed["suite"]["seconds"], loop() / allowed["suite"]["loop"]
        print(f"\nthe suite took {took:.0f} s, {took / pace:.0f} s at the pace of {limit} s")
        if os.cpu_count() != CORES:
            print(f"not compared: there are {os.cpu_count()} cores, not {CORES}")
        elif min(took, took / pace) > limit + SECONDS:
            problems.append(f"the tests took {took:.0f} s, 20 s more than {limit}")
    for problem in problems:
        print(
            f"{problem}: take something out, or change .ci/weight.toml and say why", file=sys.stderr
        )
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
