"""The package as it is installed: what it imports, what it exports, what it ships."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import privlearn
from privlearn import errors

ROOT = Path(__file__).parents[2]
LAYERS = ("accountants", "learners", "mechanisms")
HEAVY = ("scipy.stats", "matplotlib", "cvxpy", "torch", "pandas", "joblib", "rich", "typer")
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(privlearn.__path__, "privlearn.")
    if not module.name.endswith("__main__")
)


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def imported(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_privlearn_brings_nothing_heavy() -> None:
    loaded = imported("import privlearn; privlearn.Token, privlearn.Ledger, privlearn.Rows")
    assert "privlearn.contract.tokens" in loaded
    assert not [name for name in HEAVY if name in loaded]


def test_importing_privlearn_alone_brings_nothing_of_it() -> None:
    assert not [name for name in imported("import privlearn") if name.startswith("numpy")]


def test_a_heavy_import_would_be_seen() -> None:
    assert "scipy.stats" in imported("import privlearn, scipy.stats")


def test_importing_the_core_brings_no_layer() -> None:
    loaded = imported("import privlearn")
    assert not [name for name in loaded if name.startswith(tuple(f"privlearn.{x}" for x in LAYERS))]


@pytest.mark.parametrize("name", ["privlearn", *MODULES])
def test_every_exported_name_exists_once(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert len(exported) == len(set(exported))
    assert [export for export in exported if not hasattr(module, export)] == []


def test_the_public_packages_say_what_they_export() -> None:
    for name in ("privlearn", *(f"privlearn.{layer}" for layer in LAYERS)):
        assert importlib.import_module(name).__all__


def test_layers_are_one_module_each_wherever_they_are_imported_from() -> None:
    script = "import sys; sys.path.insert(0, '.'); import accountants"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert "import privlearn.accountants, not the folder" in done.stderr


def test_the_layers_are_tracked_links_to_the_folders_at_the_root() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-s", "privlearn"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout
    links = [line.split()[-1] for line in listed.splitlines() if line.startswith("120000")]
    assert links == [f"privlearn/{layer}" for layer in LAYERS]
    for layer in LAYERS:
        link = ROOT / "privlearn" / layer
        assert not link.is_symlink() or link.readlink() == Path("..") / layer


def test_the_package_list_is_the_tree() -> None:
    folders = [ROOT / "privlearn", *(ROOT / layer for layer in LAYERS)]
    found = []
    for folder in folders:
        prefix = "privlearn" if folder.name == "privlearn" else f"privlearn.{folder.name}"
        for init in folder.rglob("__init__.py"):
            inside = init.parent.relative_to(folder).parts
            if folder.name == "privlearn" and inside and inside[0] in LAYERS:
                continue
            found.append(".".join([prefix, *inside]))
    setuptools = project()["tool"]["setuptools"]
    assert sorted(found) == sorted(setuptools["packages"])
    assert setuptools["package-dir"] == {
        "privlearn": "privlearn",
        **{f"privlearn.{layer}": layer for layer in LAYERS},
    }


def test_the_wheel_ships_types_data_and_licences() -> None:
    settings = project()
    data = settings["tool"]["setuptools"]["package-data"]
    assert "py.typed" in data["privlearn"]
    assert (ROOT / "privlearn" / "py.typed").is_file()
    for package in settings["tool"]["setuptools"]["packages"]:
        parts = package.split(".")
        folder = ROOT.joinpath(*(parts[1:] if parts[1:2] and parts[1] in LAYERS else parts))
        for file in filter(Path.is_file, folder.iterdir()):
            code = file.suffix in (".py", ".pyi", ".pyc")
            assert code or any(file.match(each) for each in data.get(package, [])), file
    for pattern in settings["project"]["license-files"]:
        if pattern != "LICENSE":
            assert (ROOT / pattern).is_file()


def test_the_entry_point_is_named() -> None:
    assert project()["project"]["scripts"] == {"privlearn": "privlearn.cli.main:main"}


def test_the_picture_of_the_error_tree_is_the_tree() -> None:
    picture = (errors.__doc__ or "").splitlines()
    drawn = {
        line.strip("│├└─ ").split()[0]
        for line in picture
        if "── " in line or "PrivlearnError" in line
    }
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.PrivlearnError)
    }
    assert drawn == set(classes)
    for name, kind in classes.items():
        assert kind.__doc__
        depth = next(
            line.index(name) for line in picture if f" {name}" in line or line.strip() == name
        )
        parent = kind.__mro__[1].__name__
        if name != "PrivlearnError":
            above = next(line.index(parent) for line in picture if parent in line)
            assert above < depth


def test_what_looks_into_sealed_rows_is_a_short_list() -> None:
    """Each of these calls hands over, or makes up, what rows hold; a further one is for review."""
    calls = (
        "_unseal",
        "_parts_of",
        "_of_parts",
        "_admitted",
        "_admitted_elsewhere",
        "_of_own",
        "_served_by",
    )
    found = {
        (name, file.relative_to(ROOT).as_posix())
        for folder in ("privlearn", *LAYERS)
        for file in (ROOT / folder).rglob("*.py")
        for name in calls
        if f"Rows.{name}(" in file.read_text(encoding="utf-8")
    }
    assert found == {
        ("_unseal", "privlearn/contract/billboard.py"),
        ("_unseal", "privlearn/rows/clipping.py"),
        ("_parts_of", "privlearn/rows/store.py"),
        ("_parts_of", "privlearn/rows/travel.py"),
        ("_of_parts", "privlearn/rows/store.py"),
        ("_of_parts", "privlearn/rows/travel.py"),
        ("_admitted", "privlearn/contract/billboard.py"),
        ("_admitted", "learners/local/client.py"),
        ("_admitted", "privlearn/people/registry.py"),
        ("_admitted_elsewhere", "privlearn/rows/partitions/jobs.py"),
        ("_of_own", "learners/served.py"),
        ("_of_own", "learners/streaming.py"),
        ("_of_own", "learners/local/client.py"),
        ("_of_own", "privlearn/rows/partitions/jobs.py"),
        ("_served_by", "privlearn/contract/billboard.py"),
        ("_served_by", "learners/served.py"),
    }


def test_what_opens_or_makes_up_partial_sums_is_a_short_list() -> None:
    calls = (
        "PartialSum._opened(",
        "PartitionedRows._opened(",
        "._asked(",
        " PartialSum(",
        " OpenedPartitions(",
    )
    found = {
        (call, file.relative_to(ROOT).as_posix())
        for folder in ("privlearn", *LAYERS)
        for file in (ROOT / folder).rglob("*.py")
        for call in calls
        if call in file.read_text(encoding="utf-8")
    }
    assert found == {
        ("PartialSum._opened(", "privlearn/contract/receipts.py"),
        ("PartialSum._opened(", "privlearn/rows/partitions/rows.py"),
        ("PartitionedRows._opened(", "privlearn/contract/receipts.py"),
        ("._asked(", "privlearn/rows/partitions/rows.py"),
        ("._asked(", "mechanisms/objective_perturbation.py"),
        (" PartialSum(", "privlearn/contract/partial_sums.py"),
        (" PartialSum(", "privlearn/rows/partial_sums.py"),
        (" PartialSum(", "privlearn/rows/partitions/rows.py"),
        (" OpenedPartitions(", "privlearn/rows/partitions/rows.py"),
    }
