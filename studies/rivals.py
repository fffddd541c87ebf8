"""Run all methods on two real data sets and write docs/results-rivals.md: one table each.

    python studies/rivals.py --data-dir DIR [--only motionsense] [--seeds 0] [--rounds 3]

Runs that are done already (in `runs/rivals`) are not run again. With `--seeds` or `--rounds` it is a trial: it runs
elsewhere and only prints its tables.
"""

import argparse
import platform
from pathlib import Path

from fedclade.compare import Study, compare, to_markdown, write_tables, written
from fedclade.methods import METHODS
from fedclade.settings import cores, read_toml

HERE = Path(__file__).parent
STUDIES = ("fashion-mnist", "motionsense")


def study_of(name: str, arguments: argparse.Namespace) -> Study:
    values = read_toml(HERE / "rivals" / f"{name}.toml")
    values["settings"] |= {"data_dir": arguments.data_dir} if arguments.data_dir else {}
    values["settings"] |= {"rounds": arguments.rounds} if arguments.rounds else {}
    values |= {"seeds": arguments.seeds} if arguments.seeds else {}
    study = Study.of(values)
    left_out = set(METHODS) - {cell.settings["method"]["name"] for cell in study.cells}
    assert not left_out, f"{name}.toml lacks {left_out}"
    return study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--only", nargs="*", default=STUDIES, choices=STUDIES)
    parser.add_argument("--seeds", nargs="*", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--runs", type=Path, default=Path("runs/rivals"))
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results-rivals.md")
    arguments = parser.parse_args()
    trial = bool(arguments.seeds or arguments.rounds)
    runs = arguments.runs / f"trial-{arguments.rounds}-{arguments.seeds}" if trial else arguments.runs
    sections = []
    for name in arguments.only:
        study = study_of(name, arguments)
        done = compare(
            study,
            runs / name,
            workers=arguments.workers,
            on_run=lambda run, failure: print(run.path, failure or "done", flush=True),
        )
        write_tables(done)
        sections.append(f"## {study.title}\n\n{to_markdown(written(done.table(), study))}\n")
        sections += [f"{label}, seed {seed}, failed: {why}\n" for (label, seed), why in done.failures.items()]
    head = (
        "# All methods side by side\n\nMade by `make results-rivals` on a "
        f"{cores()}-core CPU ({platform.machine()}), {len(study.seeds)} seeds each, real data; the studies are in "
        "`studies/rivals/`.\n\nEvery table has two accuracies, in percent: of the model that the **server** holds for each "
        "client (for methods with personal models, of the model that serves the client), and of each client's **own** last "
        "trained model. `±` is over seeds, `std` and `worst` over clients; `settled` is the last round in which the "
        "clusters changed; the target is a mean accuracy of the first kind, looked at in the rounds that are evaluated "
        "(`evaluate_every` of the study); `p` is of a paired t-test over seeds against the best server's model.\n"
    )
    if trial:
        print("\n".join(sections))
    else:
        arguments.out.write_text("\n".join([head, *sections]))
        print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
