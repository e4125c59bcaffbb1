"""Bad input for every reader, loader and endpoint; see ``harness`` for what counts as a failure.

    python -m tools.chaos.fuzz --cases 100000 --seed 1 --json OUT   all targets, cases shared among them by weight
    python -m tools.chaos.fuzz --target states-npz --cases 1000     one
    python -m tools.chaos.fuzz --target states-npz --seed 1 --case 17 --keep FOLDER   one case again, in this process

Every target runs in a process of its own. If that dies, the case it died of is a failure and the rest goes on. Cases
that broke something are kept as folders of files, in ``--keep``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.chaos.harness import Failure, Progress, Report, child, random_of, write_case
from tools.chaos.seeds import make_seeds
from tools.chaos.targets import TARGETS, WEIGHTS

_STUCK = 300  # seconds at one case: it waits, or is in code that no signal interrupts


def run(name: str, seed: int, numbers: range, folder: Path, seeds: Path) -> Report:
    """Run cases of a target in processes: another where one died."""
    from warm_process import WarmProcess

    whole = Report(name)
    while numbers:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        progress = Progress(folder / "progress")
        arguments = ["--child", name, "--seed", seed, "--numbers", f"{numbers.start}:{numbers.stop}"]
        process = WarmProcess(Path(__file__), *arguments, "--folder", folder, "--seeds", seeds)
        begin, last, since = time.monotonic(), progress.read(), time.monotonic()
        try:
            while process.poll() is None and time.monotonic() - since < _STUCK:
                time.sleep(0.02)
                if progress.read() != last:
                    last, since = progress.read(), time.monotonic()
        finally:  # also if this process is told to end
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        code = process.wait()
        if (folder / "report.json").exists():
            part = json.loads((folder / "report.json").read_text())
            failures = [Failure(**one) for one in part.pop("failures")]
            return _joined(whole, Report(**part, failures=failures))
        at = progress.read()
        said = process.stderr.strip().splitlines()
        if at < 0:
            raise RuntimeError(f"{name} cannot be run: {code}\n" + "\n".join(said[-30:]))
        kind = "stuck" if code == -signal.SIGKILL else "crash"
        frames = [line.strip() for line in said if "/torchsdm/" in line]
        died = Failure(name, seed, at, kind, f"the process ended with {code}: {(said or ['nothing said'])[-1]:.200}")
        died.where = " < ".join(frames[:3])
        part = Report(name, at + 1 - numbers.start, 0, round(time.monotonic() - begin, 1), 0, [died])
        whole, numbers = _joined(whole, part), range(at + 1, numbers.stop)
    return whole


def _joined(one: Report, other: Report) -> Report:
    return Report(
        one.target,
        one.cases + other.cases,
        one.refused + other.refused,
        round(one.seconds + other.seconds, 1),
        max(one.megabytes, other.megabytes),
        [*one.failures, *other.failures],
    )


def run_all(
    names: list[str], n_cases: int, seed: int, work: Path, keep: Path | None = None, figures: Path | None = None
) -> list[Report]:
    """Run cases of several targets, one target after the other; the figures are written after each."""
    total, reports = sum(WEIGHTS[name] for name in names), []
    make_seeds(work / "seeds")
    for name in names:
        n = max(1, round(n_cases * WEIGHTS[name] / total))
        reports.append(run(name, seed, range(n), work / name, work / "seeds"))
        _say(reports[-1])
        if figures is not None:
            figures.parent.mkdir(parents=True, exist_ok=True)
            figures.write_text(json.dumps(summary(reports, seed), indent=1) + "\n")
        if keep is not None:
            _keep(reports[-1], keep, work / "seeds")
        shutil.rmtree(work / name, ignore_errors=True)
    return reports


def _say(report: Report) -> None:
    rate = report.cases / max(report.seconds, 0.1)
    print(
        f"{report.target:24} {report.cases:7} cases {report.refused:7} refused {report.seconds:7.1f} s {rate:6.0f}/s "
        f"{report.megabytes:4} MB {len(report.failures):4} failures",
        flush=True,
    )
    for what, numbers in distinct(report.failures).items():
        print(f"    {len(numbers)}x, first {numbers[0]}: {what}", flush=True)


def distinct(failures: list[Failure]) -> dict[str, list[int]]:
    """The numbers of the cases by what broke; cases that break the same have one place."""
    found: dict[str, list[int]] = {}
    places: dict[tuple[str, str, str], str] = {}
    for one in failures:
        kind = one.kind, one.what.partition(":")[0], one.where or one.what[:60]
        text = places.setdefault(kind, f"{one.kind}: {one.what} [{one.where}]")
        found.setdefault(text, []).append(one.number)
    return found


def _keep(report: Report, keep: Path, seeds: Path) -> None:
    for numbers in distinct(report.failures).values():
        target = TARGETS[report.target](seeds)
        for number in numbers[:3]:
            seed = report.failures[0].seed
            write_case(target.case(random_of(target.name, seed, number)), keep / target.name / f"{seed}-{number}")


def summary(reports: list[Report], seed: int) -> dict[str, Any]:
    """What is written about a run."""
    return {
        "seed": seed,
        "cases": sum(one.cases for one in reports),
        "refused": sum(one.refused for one in reports),
        "seconds": round(sum(one.seconds for one in reports), 1),
        "failures": sum(len(one.failures) for one in reports),
        "targets": {
            one.target: {
                **{name: value for name, value in asdict(one).items() if name not in ("target", "failures")},
                "failures": len(one.failures),
                **({"broke": distinct(one.failures)} if one.failures else {}),
            }
            for one in reports
        },
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this; may be repeated")
    parser.add_argument("--cases", type=int, default=10_000, help="over all targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run only this one, in this process, and show its traceback")
    parser.add_argument("--json", type=Path, help="where to write the summary")
    parser.add_argument("--keep", type=Path, help="where to keep cases that broke something")
    parser.add_argument("--work", type=Path, help="a folder to work in; in memory is faster")
    for name in ("--child", "--numbers", "--folder", "--seeds"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        first, last = map(int, given.numbers.split(":"))
        target = TARGETS[given.child](Path(given.seeds))
        child(target, given.seed, range(first, last), Path(given.folder))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    root = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="chaos-", dir=root) as temporary:
        work = given.work or Path(temporary)
        if given.case is not None:
            return _once(given.target[0], given.seed, given.case, work, given.keep)
        reports = run_all(given.target or list(TARGETS), given.cases, given.seed, work, given.keep, given.json)
    found = summary(reports, given.seed)
    print(f"{found['cases']} cases, {found['failures']} failures, {found['seconds']} s, seed {given.seed}")
    return 1 if found["failures"] else 0


def _once(name: str, seed: int, number: int, work: Path, keep: Path | None) -> int:
    warnings.simplefilter("ignore")
    make_seeds(work / "seeds")
    target = TARGETS[name](work / "seeds")
    folder = keep or work / "case"
    write_case(target.case(random_of(name, seed, number)), folder)
    target.read(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
