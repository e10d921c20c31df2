"""Makes the pictures of `docs/gallery.md` by running the blocks of that page.

``python docs/pictures/gallery.py`` writes them beside this file, with a palette, so that they weigh
little.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from privlearn_studies.papers.plots import few_colours

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "gallery.md"


def main() -> None:
    """Runs the page in an empty directory, and keeps its pictures."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile("\n".join(blocks), str(PAGE), "exec"), {})
        for picture in sorted(Path().glob("*.png")):
            (HERE / picture.name).write_bytes(few_colours(picture.read_bytes()))
            print(picture.name)
        os.chdir(HERE)


if __name__ == "__main__":
    main()
