"""Rooms of the package, floors, arrows between them and circles, as its imports say.

    python benchmarks/rooms.py

A room is a folder or a module in `privlearn/`.  An arrow from A to B: some module of A imports one
of B.  Floors are the longest chain of arrows, circles the rooms that reach themselves.  The three
folders at the root of the repository are rooms, too.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp

PACKAGE = "privlearn"


def rooms_of(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """Each room, and the rooms that it imports from."""
    found: dict[str, set[str]] = {name: set() for name in sorted(graph.find_children(PACKAGE))}
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            here, there = _room(module), _room(other)
            if here != there and {here, there} <= found.keys():
                found[here].add(there)
    return found


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def floors(rooms: dict[str, set[str]]) -> dict[str, int]:
    """The floor on which each room stands: one above the highest that it imports from.

    Raises:
        CycleError: the rooms are in a circle.
    """
    found: dict[str, int] = {}
    for room in TopologicalSorter(rooms).static_order():
        found[room] = 1 + max((found[other] for other in rooms[room]), default=0)
    return found


def main() -> None:
    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    rooms = rooms_of(graph)
    arrows = sum(map(len, rooms.values()))
    print(f"{len(graph.modules)} modules, {len(rooms)} rooms, {arrows} arrows", end="")
    try:
        standing = floors(rooms)
    except CycleError as error:
        raise SystemExit(f"; a circle: {' -> '.join(error.args[1])}") from None
    highest = max(standing.values())
    print(f", {highest} floors, no circle")
    for floor in range(highest, 0, -1):
        names = [room.partition(".")[2] for room, at in standing.items() if at == floor]
        print(f"  {floor}  {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
