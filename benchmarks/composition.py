"""ε of compositions, beside two other libraries: one process for each workload and library.

    pip install dp-accounting prv-accountant
    python benchmarks/composition.py [--only WORD] [--peers PYTHON | --ours]
    PYTHONPATH=tests/helpers python benchmarks/composition.py --mixtures 300

Every process answers one question once, from a cold start; the CPU seconds that are shown are
those of all its threads after the imports, and those of the whole process are recorded beside
them.  Ours runs twice, with one thread for BLAS and with as many as it takes.  ``--ours`` keeps the
peers' answers that are on file.  ``--mixtures``: so many random ones against contour integrals
instead.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from composition_workloads import (
    WORKLOADS,
    Workload,
    distributions,
    events,
    losses,
    random_variables,
)

SECONDS = 20
"""After which an answer is not waited for."""
CLOSE = 5e-5
"""Share of ε by which a sound peer may be below ours."""
LIBRARIES = ("ours", "ours, quick", "pld", "rdp", "prv")
Answer = dict[str, Any]


def _ours(effort: str) -> Callable[[Workload], Callable[[], Answer]]:
    def prepare(work: Workload) -> Callable[[], Answer]:
        import privlearn.accountants.composition  # noqa: F401  # else the call would import it
        from privlearn.accountants.epsilon_delta import evaluate
        from privlearn.accountants.tight_composition import QUICK, THOROUGH

        say = losses(work.relation)
        parts = [(say[kind](*numbers), count) for kind, numbers, count in work.steps]

        def call() -> Answer:
            quick = effort == "quick"
            found = evaluate(parts, order=work.order, effort=QUICK if quick else THOROUGH)
            epsilon = found.epsilon(work.delta)
            # a Rényi bound does not say how far it is above the truth
            enclosed = epsilon.method != "renyi"
            least = epsilon.value - epsilon.error_bound if enclosed else 0.0
            return {"epsilon": epsilon.value, "least": least, "method": epsilon.method}

        return call

    return prepare


def _by_accountant(name: str) -> Callable[[Workload], Callable[[], Answer]]:
    def prepare(work: Workload) -> Callable[[], Answer]:
        from dp_accounting import NeighboringRelation
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.rdp import RdpAccountant

        say = events()
        if name == "pld" and not all(kind in say for kind, _, _ in work.steps):
            return _by_distributions(work)
        parts = [(say[kind](*numbers), count) for kind, numbers, count in work.steps]
        relation = (
            NeighboringRelation.REPLACE_ONE
            if work.relation == "replace-one"
            else NeighboringRelation.ADD_OR_REMOVE_ONE
        )

        def call() -> Answer:
            made = (PLDAccountant if name == "pld" else RdpAccountant)(
                neighboring_relation=relation
            )
            for event, count in parts:
                made.compose(event, count)
            return {"epsilon": float(made.get_epsilon(work.delta))}

        return call

    return prepare


def _by_distributions(work: Workload) -> Callable[[], Answer]:
    say = distributions()
    made = [(say[kind], numbers, count) for kind, numbers, count in work.steps]

    def call() -> Answer:
        total = None
        for make, numbers, count in made:
            law = make(*numbers)
            law = law.self_compose(count) if count > 1 else law
            total = law if total is None else total.compose(law)
        assert total is not None
        return {"epsilon": float(total.get_epsilon_for_delta(work.delta))}

    return call


def _prv(work: Workload) -> Callable[[], Answer]:
    from prv_accountant import PRVAccountant

    say = random_variables()
    parts = [(say[kind](*numbers), count) for kind, numbers, count in work.steps]

    def call() -> Answer:
        counts = [count for _, count in parts]
        made = PRVAccountant(
            prvs=[part for part, _ in parts],
            max_self_compositions=counts,
            eps_error=0.001,
            delta_error=work.delta / 1000,
        )
        least, _, most = made.compute_epsilon(work.delta, counts)
        return {"epsilon": float(most), "least": float(least)}

    return call


_PREPARE: dict[str, Callable[[Workload], Callable[[], Answer]]] = {
    "ours": _ours("thorough"),
    "ours, quick": _ours("quick"),
    "pld": _by_accountant("pld"),
    "rdp": _by_accountant("rdp"),
    "prv": _prv,
}


def one(name: str, library: str) -> Answer:
    """One answer with its CPU and wall seconds."""
    warnings.simplefilter("ignore")
    work = next(work for work in WORKLOADS if work.name == name)
    try:
        call = _PREPARE[library](work)
    except KeyError:
        return {"none": "no such mechanism"}
    cpu, wall = time.process_time(), time.perf_counter()
    answer = call()
    took = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    return answer | took | {"process": time.process_time()}


def _asked(work: Workload, library: str, python: str, threads: str | None) -> Answer:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    command = [python, __file__, "--one", work.name, library]
    try:
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"none": f"over {SECONDS} s"}
    if run.returncode:
        return {"none": (run.stderr.strip().splitlines() or ["killed"])[-1][:200]}
    found: Answer = json.loads(run.stdout.splitlines()[-1])
    return found


def _shown(answer: Answer, least: float | None = None) -> str:
    if "none" in answer:
        return "–" if answer["none"] == "no such mechanism" else "none"
    below = least is not None and answer["epsilon"] < least
    return f"{answer['epsilon']:.6g} ({answer['cpu']:.2g} s){' below the truth' if below else ''}"


def _best(answers: dict[str, Answer]) -> tuple[float, float]:
    """ε of the best sound peer, and the CPU seconds of the fastest that is as tight as ours."""
    ours = answers["ours"]
    least = ours.get("least", 0.0) * (1 - 1e-9)
    sound = [
        answer
        for name, answer in answers.items()
        if not name.startswith("ours") and answer.get("epsilon", 0.0) >= least
    ]
    best = min((answer["epsilon"] for answer in sound if "epsilon" in answer), default=math.inf)
    close = [
        answer["cpu"]
        for answer in sound
        if "epsilon" in answer and answer["epsilon"] <= ours.get("epsilon", math.inf) * 1.001
    ]
    return best, min(close, default=math.inf)


def compare(only: str, peers: str | None) -> tuple[list[list[str]], dict[str, Any]]:
    """A row for each workload, and all answers; without ``peers`` theirs are those on file."""
    from reporting import RESULTS

    rows, numbers = [], {}
    kept = (
        {} if peers else json.loads((RESULTS / "composition.json").read_text("utf-8"))["workloads"]
    )
    for work in WORKLOADS:
        if only not in work.name:
            continue
        answers = {}
        for library in LIBRARIES:
            if peers is None and not library.startswith("ours"):
                answers[library] = kept[work.name][library]
                continue
            python = sys.executable if library.startswith("ours") else str(peers)
            answers[library] = _asked(work, library, python, "1")
        answers["ours, all threads"] = _asked(work, "ours", sys.executable, None)
        numbers[work.name] = {"source": work.source, "delta": work.delta, **answers}
        least = answers["ours"].get("least")
        best, fastest = _best(answers)
        mine, quick = answers["ours"], answers["ours, quick"]
        above = mine.get("epsilon", math.inf) / best - 1 if best else mine["epsilon"]
        verdict = [] if above <= CLOSE else [f"{above:.2%} above"]
        if quick.get("epsilon", math.inf) > 1.001 * mine.get("epsilon", math.inf):
            verdict.append("quick looser")
        if mine.get("cpu", math.inf) > 1.5 * fastest and mine.get("cpu", math.inf) > 0.01:
            verdict.append(f"{mine.get('cpu', math.inf) / max(fastest, 1e-6):.1f} times the CPU")
        shown = [_shown(answers[name], least) for name in LIBRARIES[2:]]
        row = [work.name, f"{work.delta:g}", _shown(mine), _shown(quick), *shown]
        rows.append([*row, ", ".join(verdict) or "as good"])
        print(*rows[-1], sep=" | ", flush=True)
    return rows, numbers


def study(count: int) -> None:
    """Random mixtures: how many answers lie below a contour integral, and how wide they are."""
    import numpy as np
    from contour import delta_by_contour, mixture
    from reporting import Table, write

    from privlearn.accountants.epsilon_delta import evaluate

    rng, below, gaps = np.random.default_rng(300), 0, []
    for _ in range(count):
        parts, delta = mixture(rng), float(10.0 ** rng.uniform(-9, -3))
        answer = evaluate(parts).epsilon(delta)
        below += delta_by_contour(parts, answer.value) > delta * (1 + 1e-8)
        gaps.append(answer.error_bound / answer.value)
    found = {"mixtures": count, "below": below, "median": float(np.median(gaps)), "most": max(gaps)}
    row = [str(count), str(below), f"{found['median']:.2g}", f"{found['most']:.2g}"]
    header = ["mixtures", "below the truth", "median interval over ε", "largest"]
    write("composition_mixtures", [Table("Against contour integrals", header, [row])], found)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(*sys.argv[2:])))
        return
    from reporting import Table, parser, write  # the peers' Python need not have what it needs

    arguments = parser(__doc__)
    arguments.add_argument(
        "--only", default="", metavar="WORD", help="workloads with it in the name"
    )
    arguments.add_argument("--peers", default=sys.executable, help="the Python that has the peers")
    arguments.add_argument("--ours", action="store_true", help="peers' answers are those on file")
    arguments.add_argument("--mixtures", type=int, metavar="NUMBER")
    options = arguments.parse_args()
    if options.mixtures is not None:
        return study(options.mixtures)
    rows, numbers = compare(options.only, None if options.ours else options.peers)
    threads = [
        each["ours, all threads"]["cpu"] / each["ours"]["cpu"]
        for each in numbers.values()
        if "cpu" in each["ours, all threads"] and each["ours"].get("cpu", 0) > 0.05
    ]
    whole = {
        name: statistics.median(
            each[name]["process"] for each in numbers.values() if "process" in each[name]
        )
        for name in LIBRARIES
    }
    notes = (
        f"{sum(row[-1] == 'as good' for row in rows)} of {len(rows)} workloads: ε at most "
        f"{CLOSE:.3%} above the best sound peer, quick within .1 % of it, CPU at most 1.5 times "
        "that of the fastest answer within .1 % (or below 10 ms).  pld, rdp: dp-accounting.  "
        "Without OMP_NUM_THREADS our CPU seconds are at most "
        f"{max(threads, default=1.0):.2f} times those of one thread, over workloads above 50 ms.  "
        "CPU seconds of a whole process with its imports, median: "
        + ", ".join(f"{name} {seconds:.2f}" for name, seconds in whole.items())
        + "."
    )
    header = ["workload", "δ", "ours", "quick", *LIBRARIES[2:], "verdict"]
    write("composition", [Table("ε (CPU seconds)", header, rows)], {"workloads": numbers}, notes)


if __name__ == "__main__":
    main()
