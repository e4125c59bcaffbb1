"""The page at ``/``, and the routes that only it needs: the map, the review queue, recent inputs.

These routes are no part of the described interface: they change with the page.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Query, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles

from torchsdm.application import ReviewQueue, calibration_examples
from torchsdm.errors import InvalidInputError
from torchsdm.service.failures import JSONAnswer
from torchsdm.service.routes import ServingModel, StrictRoute

PAGE = Path(__file__).parent / "page"
_ENDINGS = (".jsonl", ".csv", ".tsv")
_MOST_ROWS = 500  # of a page of the queue, or of calibration points by position
_DRAWN = ("prediction", "confidence", "rescaled_similarity", "lane", "score")


async def _queue(request: Request) -> ReviewQueue:
    return request.app.state.queue


Queue = Annotated[ReviewQueue, Depends(_queue)]
Person = Annotated[str, Body()]
RowNumber = Annotated[int, Body(ge=1, lt=2**63)]
router = APIRouter(route_class=StrictRoute, include_in_schema=False)
files = StaticFiles(directory=PAGE)  #: what the page consists of


@router.get("/")
def home() -> Response:
    """The page."""
    return FileResponse(PAGE / "index.html")


@router.get("/v1/signals")
def signals(serving: ServingModel) -> Response:
    """How the signals of calibration points are spread; also whether the model judges answers."""
    served = serving.served
    return JSONAnswer({"version": served.version, **served.signals, "asks_for_answers": served.asks_for_answers})


@router.get("/v1/map")
def calibration(serving: ServingModel) -> Response:
    """Calibration points, and the regions of a grid of alphas."""
    served = serving.served
    return JSONAnswer({"version": served.version, **served.map})


@router.get("/v1/map/examples")
def examples(serving: ServingModel, queue: Queue, of: Literal["calibration", "queue"], positions: str) -> Response:
    """Id and text of points of the map: calibration points by their positions, those of the queue by their rows."""
    try:
        chosen = [int(one) for one in positions.split(",")[:_MOST_ROWS]]
    except ValueError as error:
        raise InvalidInputError("positions: whole numbers with commas between them are expected.") from error
    if of == "queue":
        rows = {row["row"]: row for row in queue.store.rows(chosen=chosen)}
        found = [rows.get(one, {"name": one, "text": None}) for one in chosen]
        return JSONAnswer({"examples": [{"id": one["name"], "text": one["text"]} for one in found]})
    classifier = serving.served.saved.classifier
    n = len(classifier.models_[0].calibration.labels)
    if not all(0 <= one < n for one in chosen):
        raise InvalidInputError(f"positions: they must be in 0..{n - 1}.")
    return JSONAnswer({"examples": calibration_examples(classifier, chosen, texts=serving.settings.texts)})


@router.get("/v1/recent")
def recent(serving: ServingModel) -> Response:
    """Recent lanes and distances, by minute."""
    return JSONAnswer(serving.metrics.recent.to_dict())


@router.get("/v1/review")
def rows(
    queue: Queue,
    status: Literal["", "open", "labelled", "skipped", "added"] = "",
    lane: str = "",
    search: str = "",
    order: Literal["arrival", "contradiction", "confidence", "distance"] = "arrival",
    limit: Annotated[int, Query(ge=1, le=_MOST_ROWS)] = 50,
    offset: Annotated[int, Query(ge=0, lt=2**63)] = 0,
) -> Response:
    """Rows of the review queue."""
    store = queue.store
    chosen: dict[str, Any] = {"status": status or None, "lane": lane or None, "search": search}
    found = {
        "rows": store.rows(**chosen, order=order, limit=limit, offset=offset),
        "n": store.count(**chosen),
        "counts": store.counts(),
        "problem": queue.problem,
    }
    return JSONAnswer(found)


@router.get("/v1/review/points")
def points(serving: ServingModel, queue: Queue) -> Response:
    """The queue as columns, for the map. Predictions and labels are class numbers, -1 for none."""
    number = {str(name): c for c, name in enumerate(serving.served.saved.classifier.classes_.tolist())}
    columns = queue.store.columns(_DRAWN)
    for name in ("prediction", "given", "label"):
        columns[name] = [number.get(str(one), -1) for one in columns[name]]
    keep = [row for row, q in enumerate(columns["rescaled_similarity"]) if q is not None]
    return JSONAnswer({name: [values[row] for row in keep] for name, values in columns.items()})


@router.get("/v1/review/export.{ending}")
def export(queue: Queue, ending: Literal["jsonl", "csv"]) -> Response:
    """What people decided, as a file."""
    kind = "text/csv; charset=utf-8" if ending == "csv" else "application/x-ndjson"
    named = {"content-disposition": f'attachment; filename="reviewed.{ending}"'}
    return StreamingResponse(queue.export(ending), media_type=kind, headers=named)


@router.post("/v1/review")
def put(queue: Queue, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Add inputs to the queue: ``{"rows": [...]}``, or a file as ``{"name": ..., "content": ...}``."""
    if set(body) == {"rows"} and isinstance(body["rows"], list):
        return JSONAnswer(queue.put(body["rows"], "sent"))
    if set(body) != {"name", "content"} or not all(isinstance(one, str) for one in body.values()):
        raise InvalidInputError('For review, give "rows", a list, or the "name" and the "content" of a text file.')
    ending = Path(body["name"]).suffix.lower()
    if ending not in _ENDINGS:
        allowed = ", ".join(_ENDINGS)
        raise InvalidInputError(f"The name of a file must end in one of {allowed}. Got {body['name']!r}.")
    with tempfile.TemporaryDirectory(prefix="sdm-") as folder:
        path = Path(folder) / f"upload{ending}"
        path.write_bytes(body["content"].encode("utf-8", "surrogatepass"))
        return JSONAnswer(queue.put_file(path, body["name"]))


@router.delete("/v1/review")
def clear(queue: Queue) -> Response:
    """Remove what was not added to the model."""
    return JSONAnswer({"removed": queue.store.clear()})


@router.post("/v1/review/label")
def label(queue: Queue, row: RowNumber, who: Person, label: Annotated[Any, Body()] = None) -> Response:
    """Label an input, or skip it."""
    queue.label(row, label, who)
    return JSONAnswer({"row": row, "label": label})


@router.post("/v1/review/unlabel")
def unlabel(queue: Queue, who: Annotated[str, Body(embed=True)]) -> Response:
    """Undo the last label of a person."""
    return JSONAnswer({"row": queue.unlabel(who)})


@router.post("/v1/review/preview")
def preview(queue: Queue, recalibrate: Annotated[bool, Body(embed=True)] = True) -> Response:
    """What adding all that was labelled would do."""
    return JSONAnswer(queue.preview(recalibrate=recalibrate))


@router.post("/v1/review/add")
def add(queue: Queue, who: Person, why: Person, recalibrate: Annotated[bool, Body()] = True) -> Response:
    """Add all that was labelled to the model."""
    changes = queue.add(who, why, recalibrate=recalibrate)
    return JSONAnswer({"versions": [one.version for one in changes], "n": changes[0].n})


@router.post("/v1/review/undo")
def undo(queue: Queue, version: Annotated[int, Body()], who: Person, why: Person) -> Response:
    """Undo a change of the model, and what was made in one step with it."""
    return JSONAnswer({"versions": [one.version for one in queue.undo(version, who, why)]})
