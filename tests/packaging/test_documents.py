"""What the documents say of the code: names and links exist, and the rooms are as drawn."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

from privlearn.values.packages import GROUPS

ROOT = Path(__file__).parents[2]


DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "privlearn").rglob("*.md")),
]


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute of what stands before its last point."""
    try:
        importlib.import_module(dotted)
    except ImportError:
        home, _, name = dotted.rpartition(".")
        return bool(home) and hasattr(importlib.import_module(home), name)
    return True


def test_names_of_modules_and_objects_in_documents_exist() -> None:
    named = {
        name
        for path in DOCUMENTS
        for name in re.findall(r"\bprivlearn(?:\.[A-Za-z_]\w*)+", path.read_text("utf-8"))
    }
    named -= set(GROUPS)  # of entry points
    assert len(named) > 10
    assert [name for name in sorted(named) if not exists(name)] == []
    assert not exists("privlearn_studies.data.unicorns")


def anchors(path: Path) -> set[str]:
    """What links within a document may name: its headings, as web pages show them."""
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads)
    found: set[str] = set()
    for head in plain:
        number = sum(
            other == head or re.fullmatch(f"{head}-\\d+", other) is not None for other in found
        )
        found.add(f"{head}-{number}" if number else head)
    return found


def broken_links(path: Path, text: str) -> list[str]:
    """Links to files that do not exist, or to headings that their document does not have."""
    broken = []
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if ":" in file or (target.exists() and not anchor):
            continue
        if not target.exists() or (target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_links_between_documents_lead_somewhere() -> None:
    assert {str(p): b for p in DOCUMENTS if (b := broken_links(p, p.read_text("utf-8")))} == {}
    wrong = "[a](docs/nothing.md) [b](README.md#nothing) [c](#nothing) [d](docs/people.md#ids)"
    found = broken_links(ROOT / "README.md", wrong)
    assert found == ["docs/nothing.md", "README.md#nothing", "#nothing"]


def test_the_picture_of_the_rooms_is_the_import_contract() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    picture = text.split("```")[1]
    floors: list[set[str]] = []
    for line in filter(str.strip, picture.splitlines()):
        rooms = set(re.findall(r"\w+", re.split(r"\s{3,}", line.strip())[0]))
        if line.startswith("   "):
            floors[-1] |= rooms
        else:
            floors.append(rooms)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]["layers"]
    assert floors == [set(floor.split(" | ")) for floor in contract]


def public_names(room: str) -> list[str]:
    """What a room exports: its ``__all__``, or else what it imports under its own name."""
    module = importlib.import_module(f"privlearn.{room}")
    text = Path(str(module.__file__)).read_text("utf-8")
    own = re.findall(r"import \w+ as (\w+)$", text, re.MULTILINE)
    return list(getattr(module, "__all__", own))


def test_the_reference_has_a_page_for_every_room_and_a_place_for_every_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = project["tool"]["setuptools"]["packages"]
    rooms = {name.split(".")[1] for name in packages if "." in name}
    rooms -= {"cli", "storage"}  # commands, and what nobody outside uses
    rooms |= {"learners.local", "rows.domains", "rows.partitions"}
    pages = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs/reference").glob("*.md")}
    missing = []
    for room in rooms:
        folder = ROOT / "privlearn" / room.replace(".", "/")
        page = pages[room.rpartition(".")[2]]
        listed = "__all__" in vars(importlib.import_module(f"privlearn.{room}"))
        for name in public_names(room):
            # the reference takes a module for a name that it shares with a function
            shared = (folder / f"{name}.py").exists()
            if shared and f"::: privlearn.{room}.{name}.{name}\n" not in page:
                missing.append(f"{room}.{name}")
            if not listed and not re.search(f"^ +- {name}$", page, re.MULTILINE):
                missing.append(f"{room}.{name}")
        if not public_names(room):  # a room without a front: what its users need, module by module
            assert f"::: privlearn.{room}." in page
    assert missing == []


def prose(text: str) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


BROKEN = re.compile(r"^(?![ >|]|[-+*] |\d+\. ).*\S\n(>|\+ ).*", re.MULTILINE)
"""A paragraph of which a line becomes a quotation or an item of a list."""


def test_no_line_of_a_paragraph_becomes_a_quotation_or_a_list() -> None:
    found = {path.name: BROKEN.findall(prose(path.read_text("utf-8"))) for path in DOCUMENTS}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert BROKEN.search("the terms are\n>= 0, so")
    assert BROKEN.search("recorded;\n+ and × of doubles")


def test_guides_and_explanations_can_be_found_from_another_page() -> None:
    texts = {path: path.read_text("utf-8") for path in DOCUMENTS}
    texts |= {path: path.read_text("utf-8") for path in (ROOT / "docs/tutorials").glob("*.ipynb")}
    for folder in ("how-to", "explanations"):
        for page in (ROOT / "docs" / folder).glob("*.md"):
            link = re.compile(rf"\]\([^)\s]*\b{re.escape(page.name)}[)#]")
            assert any(link.search(text) for path, text in texts.items() if path != page), page.name


MACHINE = re.compile(r"(?<![\w./~])/(?:work|opt|tmp|root|home|Users)/")


def test_no_document_names_a_place_of_the_machine_that_made_it() -> None:
    pages = [*DOCUMENTS, *(ROOT / "docs").rglob("*.ipynb"), *(ROOT / "docs").rglob("*.py")]
    named = [page.name for page in pages if MACHINE.search(page.read_text("utf-8"))]
    assert named == []
    assert MACHINE.search('File "/home/someone/x.py"')
