"""What a run survives: faults made on purpose, counted.

    python tools/reliability.py                       # all of it, and the table of docs/reliability.md
    python tools/reliability.py flips --no-table      # some of it

A process is killed at every file operation and at random moments; bits are flipped and files are cut or taken away, in
runs that have ended and in one that was killed; the disk is full or read-only. What comes of it is compared with what
an undisturbed run gives, bit for bit. The faults are those of tests/trust/faults.py, of which the tests try a sample.
"""

# ruff: noqa: E402
import argparse
import errno
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import torch

from trust.faults import (
    BAD,
    KILLED,
    METHODS,
    READERS,
    Ended,
    begin,
    copied,
    failing_from,
    files_in,
    flip,
    go_on,
    in_child,
    judged,
    judged_resume,
    killed_at,
    left_by,
    operations,
    resumed,
    stopped_run,
)

PAGE = ROOT / "docs" / "reliability.md"
START, END = "<!-- table: written by tools/reliability.py -->", "<!-- end of table -->"
Outcomes = Counter[tuple[str, str]]  # by what was tried and what came of it


def ends_alike(method: str, run: Path, expected: dict[str, str]) -> str:
    """Go on with a run that was disturbed: it must end like an undisturbed one."""
    now = in_child(lambda: (go_on(method, run), left_by(run))[1])
    if not now.is_fine:
        print(f"  does not go on: {method} {now.words[-500:]}", flush=True)
        return "does not go on"
    return "same result" if now.words == str(expected) else "silently different"


def undisturbed(method: str, place: Path) -> dict[str, str]:
    begin(method, place / "whole")
    return left_by(place / "whole")


def kills(method: str, place: Path) -> Outcomes:
    """Killed before each file operation and each statement of the memory's database."""
    expected, run = undisturbed(method, place), place / "run"
    total = operations(lambda: begin(method, run))
    found: Outcomes = Counter()
    for number in range(1, total + 1):
        shutil.rmtree(run, ignore_errors=True)
        assert killed_at(number, lambda: begin(method, run)).code == KILLED
        found["killed at a file operation, then resumed", ends_alike(method, run, expected)] += 1
    return found


def moments(method: str, place: Path, times: int = 10) -> Outcomes:
    """SIGKILL at random moments, and another in what is resumed."""
    expected, run = undisturbed(method, place), place / "run"
    dice, began = random.Random(method), time.monotonic()
    in_child(lambda: begin(method, run))
    length, found = time.monotonic() - began, Counter[tuple[str, str]]()
    for _ in range(times):
        shutil.rmtree(run, ignore_errors=True)
        in_child(lambda: begin(method, run), kill_after=dice.uniform(0, length))
        in_child(lambda: go_on(method, run), kill_after=dice.uniform(0, length))
        found["SIGKILL at a random moment, twice, then resumed", ends_alike(method, run, expected)] += 1
    return found


def full_disks(method: str, place: Path, every: int = 3) -> Outcomes:
    """Operations fail from some moment on; with room again the run ends like another."""
    expected, run = undisturbed(method, place), place / "run"
    total = operations(lambda: begin(method, run))
    found: Outcomes = Counter()
    for code, what in ((errno.ENOSPC, "disk full"), (errno.EROFS, "file system turned read-only")):
        for number in range(1 + code % every, total + 1, every):
            shutil.rmtree(run, ignore_errors=True)
            now = failing_from(number, lambda: begin(method, run), code)
            # What is only tidied away may fail without harm.
            found[what, said(now, "went on unharmed")] += 1
            found[f"{what}, then resumed with room", ends_alike(method, run, expected)] += 1
    return found


def said(now: Ended, fine: str = "same result") -> str:
    kind = judged(now, now.words if now.is_fine else "")
    if kind == "broken":
        print(f"  broken: {now.words[-700:]}", flush=True)
    return fine if kind == "same result" else kind


def looked_at(
    run: Path, place: Path, damage: Callable[[Path], object], what: str, expected: dict[str, str]
) -> Outcomes:
    """Damage a copy of a run, read it in every way, and go on with it."""
    found: Outcomes = Counter()
    copy = copied(run, place)
    label = damage(copy)
    for name, read in READERS.items():
        if name in expected:
            now = in_child(partial(read, copy))
            found[what, judged(now, expected[name], expected.get(f"{name} earlier", ""))] += 1
    now = in_child(partial(resumed, copy))
    kind = judged_resume(now, expected["resume"])
    found[f"{what}, then resumed", kind] += 1
    if any(outcome in BAD for _, outcome in found):
        print(f"  {what}: {label}: {dict(found)} {now.words[-600:] if not now.is_fine else ''}", flush=True)
    return found


def expectations(run: Path, place: Path) -> dict[str, str]:
    """What an undamaged copy gives."""
    copy = copied(run, place)
    seen = {name: in_child(partial(read, copy)) for name, read in READERS.items()}
    seen["resume"] = in_child(partial(resumed, copy))
    assert seen["show"].is_fine, seen["show"].words
    assert seen["resume"].is_fine, seen["resume"].words
    copied(run, place)
    if not (place / "result.json").is_file():
        max((place / "checkpoints").iterdir()).unlink()
        seen |= {f"{name} earlier": in_child(partial(read, place)) for name, read in READERS.items()}
    return {name: ended.words for name, ended in seen.items() if ended.is_fine}


def runs_of(method: str, place: Path) -> Iterable[tuple[str, Path]]:
    begin(method, place / "ended")
    yield "a run that has ended", place / "ended"
    yield "a run that was killed", stopped_run(method, place / "killed")


def flips(method: str, place: Path, each: int = 3) -> Outcomes:
    """Single bits, in every file."""
    dice, found = random.Random(f"flips {method}"), Counter[tuple[str, str]]()
    for kind, run in runs_of(method, place):
        expected = expectations(run, place / "copy")
        for name in files_in(run):
            for _ in range(each):

                def damage(copy: Path, name: Path = name) -> str:
                    return f"{name} bit {flip(copy / name, dice)}"

                found += looked_at(run, place / "copy", damage, f"a bit flipped in {kind}", expected)
    return found


def losses(method: str, place: Path) -> Outcomes:
    """Files and folders that are gone, and files cut in half."""
    found: Outcomes = Counter()
    for kind, run in runs_of(method, place):
        expected = expectations(run, place / "copy")
        folders = sorted(path.relative_to(run) for path in run.iterdir() if path.is_dir())
        for name in folders:
            remove = partial(lambda copy, name: (shutil.rmtree(copy / name), name)[1], name=name)
            found += looked_at(run, place / "copy", remove, f"a folder of {kind} taken away", expected)
        for name in files_in(run):
            remove = partial(lambda copy, name: ((copy / name).unlink(), name)[1], name=name)
            found += looked_at(run, place / "copy", remove, f"a file of {kind} taken away", expected)
            cut = partial(lambda copy, name: (os.truncate(copy / name, (copy / name).stat().st_size // 2), name)[1], name=name)  # fmt: skip  # noqa: E501
            found += looked_at(run, place / "copy", cut, f"a file of {kind} cut in half", expected)
    return found


def real_disks(method: str, place: Path) -> Outcomes:
    """Limits and file systems of the system itself: a largest file size, a small tmpfs, one mounted read-only."""
    found: Outcomes = Counter()
    for size in (0, 2_000, 20_000, 60_000, 150_000):
        run = place / f"limited-{size}"

        def limited(run: Path = run, size: int = size) -> None:
            import signal

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            begin(method, run)

        found["a largest file size", said(in_child(limited))] += 1
    small = place / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", small], capture_output=True)
    if mounted.returncode:  # only root may
        return found
    try:
        for kilobytes in (50, 100, 200, 300, 400):
            subprocess.run(["mount", "-o", f"remount,rw,size={kilobytes}k", small], check=True)
            shutil.rmtree(small / "run", ignore_errors=True)
            found["a full file system", said(in_child(lambda: begin(method, small / "run")))] += 1
        subprocess.run(["mount", "-o", "remount,rw,size=50m", small], check=True)
        shutil.rmtree(small / "run", ignore_errors=True)
        begin(method, small / "run")
        expected = {name: in_child(partial(read, small / "run")).words for name, read in READERS.items()}
        subprocess.run(["mount", "-o", "remount,ro", small], check=True)
        for name, read in READERS.items():
            found["a read-only file system", judged(in_child(partial(read, small / "run")), expected[name])] += 1
        for action in (lambda: begin(method, small / "other"), lambda: resumed(small / "run")):
            found["a read-only file system", said(in_child(action))] += 1
    finally:
        subprocess.run(["umount", small], check=True)
    return found


PARTS: dict[str, tuple[Callable[[str, Path], Outcomes], tuple[str, ...]]] = {
    "kills": (kills, METHODS),
    "moments": (moments, METHODS),
    "flips": (flips, ("ditto", "fedclust")),
    "losses": (losses, ("ditto", "fedclust")),
    "full": (full_disks, ("ditto", "fedclust")),
    "disks": (real_disks, ("ditto", "fedstack")),
}


def one(part: str, method: str) -> tuple[str, Outcomes]:
    torch.set_num_threads(1)
    memory = Path("/dev/shm")  # the faults are made by us: a slow disk adds nothing
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        return part, PARTS[part][0](method, Path(place))


def table(found: dict[str, Outcomes]) -> str:
    lines = ["| what was tried | times | what happened | command |", "| --- | ---: | --- | --- |"]
    for part, outcomes in found.items():
        for what in dict.fromkeys(what for what, _ in outcomes):
            mine = Counter({kind: n for (tried, kind), n in outcomes.items() if tried == what})
            words = ", ".join(f"{kind}: {n}" for kind, n in mine.most_common())
            lines.append(f"| {what} | {mine.total()} | {words} | `python tools/reliability.py {part}` |")
    total = sum(outcomes.total() for outcomes in found.values())
    bad = sum(n for outcomes in found.values() for (_, kind), n in outcomes.items() if kind in BAD)
    return "\n".join([*lines, "", f"{total:,} outcomes, of which {bad} silently different, with a traceback or stuck."])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all, unless told")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-table", action="store_true", help="leave docs/reliability.md as it is")
    given = parser.parse_args()
    chosen, began = given.parts or list(PARTS), time.monotonic()
    found: dict[str, Outcomes] = {part: Counter() for part in chosen}
    jobs = [(part, method) for part in chosen for method in PARTS[part][1]]
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        for part, outcomes in pool.map(one, *zip(*jobs, strict=True)):
            found[part] += outcomes
    words = table(found)
    print(f"{words}\n{(time.monotonic() - began) / 60:.1f} minutes")
    if not given.no_table:
        text = PAGE.read_text()
        before, after = text[: text.index(START)], text[text.index(END) :]
        PAGE.write_text(f"{before}{START}\n\n{words}\n\n{after}")
    return any(kind in BAD for outcomes in found.values() for _, kind in outcomes)


if __name__ == "__main__":
    sys.exit(main())
