"""The picture of a run in the README: `python studies/pictures.py` writes docs/run.svg."""

import contextlib
import io
import re
import tempfile
from pathlib import Path

from rich.console import Console

import fedclade
from fedclade.display import RoundsDisplay, outcome

OUT = Path(__file__).resolve().parent.parent / "docs" / "run.svg"
COMMAND = "fedclade run --data digits --split label-groups:4 --method fedclust --set training.learning_rate=0.1"
VALUES = {
    "data": "digits",
    "split": "label-groups:4",
    "method": {"name": "fedclust"},
    "training": {"learning_rate": 0.1},
}


def main() -> None:
    console = Console(record=True, width=96, file=io.StringIO(), markup=False, highlight=False, emoji=False)
    console.print(f"$ {COMMAND}")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        out = Path("runs") / "digits-fedclust"
        with RoundsDisplay(console) as display:
            fedclade.run(**VALUES, out=out, on_round=display)
        console.print()
        console.print(outcome(fedclade.load(out)))
    picture = console.export_svg(title="fedclade")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # any fixed-width font will do
    OUT.write_text(picture)


if __name__ == "__main__":
    main()
