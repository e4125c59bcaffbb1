"""Count the road of one text: what a traced ``sdm predict`` of three texts passes through.

python tools/road.py [--list]

A function counts once, by where it is written; comprehensions and lambdas belong to the function around them. What runs
while modules are imported counts too, as it does for a user.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import multiprocessing
import sys
import tempfile
import threading
import warnings
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = f"{REPOSITORY / 'src' / 'torchsdm'}/"
TEXTS = ("The film is a fine piece of work.", "A dull film. Nobody laughed.", "Was it long? No.")


def prepare(folder: Path) -> None:
    """Write a model of texts over a tiny language model, and the input."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    import transformers

    import tiny_models
    from torchsdm import SDMClassifier, SDMTextClassifier

    warnings.simplefilter("ignore")  # sixty texts without meaning certify nothing
    transformers.utils.logging.disable_progress_bar()
    words = tiny_models.TEXT.split()
    texts, labels = [" ".join(words[row : row + 5]) for row in range(60)], [row % 2 for row in range(60)]
    language_model = tiny_models.save_model(folder / "language-model", *tiny_models.bert())
    classifier = SDMClassifier(alpha=0.6, n_filters=4, n_rounds=1, max_epochs=2, random_state=0)
    SDMTextClassifier(language_model, classifier=classifier, cache=False).fit(texts, labels).save(folder / "model")
    rows = [{"id": f"r{number}", "text": text} for number, text in enumerate(TEXTS)]
    (folder / "new.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


class Road:
    """What the process passes through between ``start`` and ``stop``."""

    def __init__(self, source: Path) -> None:
        self.functions: set[CodeType] = set()
        self.opens = 0
        self.parses: Counter[str] = Counter()
        self.tokenisations: Counter[str] = Counter()
        self._source = str(source)
        self._lines = {line.strip() for line in source.read_text(encoding="utf-8").splitlines()}
        self._decode = json.JSONDecoder.decode.__code__
        sys.addaudithook(self._audit)

    def start(self) -> None:
        """Begin to count, in this thread and those it starts."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def stop(self) -> None:
        """Count no more."""
        sys.setprofile(None)
        threading.setprofile(None)

    def modules(self) -> Counter[str]:
        """The modules of the package that were passed, with the number of their functions."""
        return Counter(function.co_filename.removeprefix(PACKAGE) for function in self.functions)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]) == self._source:
            self.opens += 1

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            is_function = code.co_flags & inspect.CO_OPTIMIZED  # bodies of modules and classes are not
            if is_function and not code.co_name.startswith("<"):
                self.functions.add(code)
        elif code is self._decode:
            row = frame.f_locals["s"].strip()
            self.parses.update({row} & self._lines)
        elif code.co_name == "__call__" and code.co_filename.endswith("transformers/tokenization_utils_base.py"):
            given = frame.f_locals["text"]
            for one in [given] if isinstance(given, str) else given:
                self.tokenisations.update(text for text in TEXTS if text in one)


def walk(folder: Path) -> Road:
    """The road of ``sdm predict`` on what ``prepare`` wrote."""
    road, out = Road(folder / "new.jsonl"), io.StringIO()
    with contextlib.redirect_stdout(out):
        road.start()
        try:
            from torchsdm.cli.command import sdm

            sdm(["predict", str(folder / "model"), str(folder / "new.jsonl")], standalone_mode=False)
        finally:
            road.stop()
    if len(out.getvalue().splitlines()) != len(TEXTS):
        raise RuntimeError("sdm predict did not decide on every text.")
    return road


def main() -> None:
    """Print the counts; with ``--list``, also the modules."""
    with tempfile.TemporaryDirectory() as name:
        preparing = multiprocessing.get_context("spawn").Process(target=prepare, args=(Path(name),))
        preparing.start()  # elsewhere, so that this process begins as the command does
        preparing.join()
        if preparing.exitcode:
            sys.exit("The model could not be prepared.")
        road = walk(Path(name))
    modules = road.modules()
    for what, count in (
        ("modules", len(modules)),
        ("functions", len(road.functions)),
        ("opens of the input", road.opens),
        ("parses of a row", max(road.parses.values(), default=0)),
        ("tokenisations of a text", max(road.tokenisations.values(), default=0)),
    ):
        print(f"{what:<24}{count:>5}")
    if "--list" in sys.argv[1:]:
        print()
        for module, n_functions in sorted(modules.items()):
            print(f"{n_functions:>5}  {module}")


if __name__ == "__main__":
    main()
