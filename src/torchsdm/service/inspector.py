"""The page, and the routes that only it needs: the map, the review queue, what came in lately."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchsdm.application import (
    ReviewQueue,
    calibration_examples,
    calibration_map,
    signal_histograms,
)
from torchsdm.errors import InvalidInputError
from torchsdm.service.recent import Recent

PAGE = Path(__file__).parent / "page"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ENDING = re.compile(r"\.(jsonl|csv|tsv)$", re.IGNORECASE)
_MOST_ROWS = 500  # of a page of the queue, or of calibration points by position
_DRAWN = ("predictions", "confidence", "rescaled_similarity", "lane", "score")


class Inspector:
    """What the page's routes do, without HTTP.

    Parameters
    ----------
    queue : ReviewQueue
    recent : Recent
    texts : bool
        Whether texts of calibration points are given out.
    """

    def __init__(self, queue: ReviewQueue, recent: Recent, *, texts: bool = False) -> None:
        self.queue, self.recent, self.texts = queue, recent, texts
        self._lock = threading.Lock()
        self._drawn: dict[str, dict[str, Any]] = {}

    def signals(self) -> dict[str, Any]:
        """See ``signal_histograms``; also whether the model judges answers."""
        reader = self.queue.live.snapshot.saved.text_classifier
        asks = reader is not None and reader.extractor_.asks_for_answers
        return {**self._once("signals", signal_histograms), "asks_for_answers": asks}

    def map(self) -> dict[str, Any]:
        """See ``calibration_map``."""
        return self._once("map", calibration_map)

    def _once(self, name: str, make: Any) -> dict[str, Any]:
        """What is made of a version of the model, once."""
        snapshot = self.queue.live.snapshot
        with self._lock:
            known = self._drawn.get(name)
            if known is None or known["version"] != snapshot.version:
                known = {"version": snapshot.version, **make(snapshot.saved.classifier)}
                self._drawn[name] = known
            return known

    def examples(self, set: str, positions: str) -> dict[str, Any]:
        """Id and text of points of the map: calibration points by their positions, those of the queue by their rows."""
        try:
            chosen = [int(one) for one in positions.split(",")[:_MOST_ROWS]]
        except ValueError as error:
            raise InvalidInputError("positions must be whole numbers with commas between them.") from error
        if set == "queue":
            rows = {row["row"]: row for row in self.queue.store.rows(chosen=chosen)}
            found = [rows.get(one, {"name": one, "text": None}) for one in chosen]
            return {"examples": [{"id": one["name"], "text": one["text"]} for one in found]}
        classifier = self.queue.live.snapshot.saved.classifier
        n = len(classifier.models_[0].calibration.labels)
        if not all(0 <= one < n for one in chosen):
            raise InvalidInputError(f"positions must be in 0..{n - 1}.")
        return {"examples": calibration_examples(classifier, chosen, texts=self.texts)}

    def rows(
        self,
        status: str = "",
        lane: str = "",
        search: str = "",
        order: str = "arrival",
        limit: int = 50,
        offset: int = 0,
    ) -> dict[str, Any]:
        """Rows of the queue, and how many there are."""
        chosen: dict[str, Any] = {"status": status or None, "lane": lane or None, "search": search}
        store = self.queue.store
        rows = store.rows(**chosen, order=order, limit=max(1, min(limit, _MOST_ROWS)), offset=max(0, offset))
        counts = {"n": store.count(**chosen), "counts": store.counts(), "problem": self.queue.problem}
        snapshot = self.queue.live.snapshot
        return {
            "rows": rows,
            **counts,
            "version": snapshot.version,
            "classes": snapshot.saved.classifier.classes_.tolist(),
        }

    def put(self, body: dict[str, Any]) -> dict[str, int]:
        """Put inputs, or those of a file, into the queue."""
        if set(body) == {"rows"} and isinstance(body["rows"], list):
            return self.queue.put(body["rows"], "sent")
        if set(body) != {"name", "content"} or not all(isinstance(one, str) for one in body.values()):
            raise InvalidInputError('For review, give "rows", a list, or the "name" and the "content" of a text file.')
        ending = _ENDING.search(body["name"])
        if ending is None:
            raise InvalidInputError(f"The name of a file must end in .jsonl, .csv or .tsv. Got {body['name']!r}.")
        with tempfile.TemporaryDirectory(prefix="sdm-") as folder:
            path = Path(folder) / f"upload{ending[0].lower()}"
            path.write_text(body["content"], encoding="utf-8", newline="")
            return self.queue.put_file(path, body["name"])

    def points(self) -> dict[str, Any]:
        """The queue as columns, for the map. Predictions and labels are class numbers, -1 for none."""
        number = {str(name): c for c, name in enumerate(self.queue.live.snapshot.saved.classifier.classes_.tolist())}
        columns = self.queue.store.columns(_DRAWN)
        for name in ("predictions", "given", "label"):
            columns[name] = [number.get(str(one), -1) for one in columns[name]]
        keep = [row for row, q in enumerate(columns["rescaled_similarity"]) if q is not None]
        return {name: [values[row] for row in keep] for name, values in columns.items()}


def add_inspector(app: Any, inspector: Inspector, *, writes: Sequence[Any] = ()) -> None:
    """Add the page at ``/`` and its routes to a FastAPI application.

    Parameters
    ----------
    app : FastAPI
    inspector : Inspector
    writes : dependencies of FastAPI
        What a request that changes something has to pass, such as a check of its token.
    """
    from fastapi import APIRouter, Body, Query
    from fastapi.responses import FileResponse, Response, StreamingResponse
    from starlette.staticfiles import StaticFiles

    queue, headers = inspector.queue, {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Cache-Control": "no-cache"}

    class Files(StaticFiles):
        async def get_response(self, path: str, scope: Any) -> Any:
            response = await super().get_response(path, scope)
            response.headers.update(headers)
            return response

    def home() -> Any:
        return FileResponse(PAGE / "index.html", headers=headers)

    def rows(
        status: str = Query("", pattern="^(open|labelled|skipped|added|)$"),
        lane: str = "",
        search: str = "",
        order: str = Query("arrival", pattern="^(arrival|contradiction|confidence|distance)$"),
        limit: int = 50,
        offset: int = 0,
    ) -> dict[str, Any]:
        return inspector.rows(status, lane, search, order, limit, offset)

    def points() -> dict[str, Any]:
        return inspector.points()

    def put(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        """Inputs as ``{"rows": [...]}``, or a file as ``{"name": ..., "content": ...}``."""
        return inspector.put(body)

    def clear() -> dict[str, Any]:
        return {"removed": queue.store.clear()}

    def label(row: int = Body(), label: Any = Body(None), who: str = Body()) -> dict[str, Any]:  # noqa: B008
        queue.label(row, label, who)
        return {"row": row, "label": label}

    def unlabel(who: str = Body(embed=True)) -> dict[str, Any]:
        return {"row": queue.unlabel(who)}

    def preview(recalibrate: bool = Body(True, embed=True)) -> dict[str, Any]:
        return queue.preview(recalibrate=recalibrate)

    def add(who: str = Body(), why: str = Body(), recalibrate: bool = Body(True)) -> dict[str, Any]:
        changes = queue.add(who, why, recalibrate=recalibrate)
        return {"versions": [one.version for one in changes], "n": changes[0].n}

    def undo(version: int = Body(), who: str = Body(), why: str = Body()) -> dict[str, Any]:
        return {"versions": [one.version for one in queue.undo(version, who, why)]}

    def export(ending: str) -> Any:
        kinds = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
        named = {"Content-Disposition": f'attachment; filename="reviewed.{ending}"'}
        return StreamingResponse(queue.export(ending), media_type=kinds.get(ending), headers=named)

    router = APIRouter(prefix="/v1", tags=["page"])
    for path, answer in (
        ("/signals", inspector.signals),
        ("/map", inspector.map),
        ("/map/examples", inspector.examples),
        ("/recent", inspector.recent.to_dict),
        ("/review", rows),
        ("/review/points", points),
    ):
        router.add_api_route(path, answer, methods=["GET"])
    router.add_api_route("/review/export.{ending}", export, methods=["GET"], response_class=Response)
    router.add_api_route("/review/preview", preview, methods=["POST"])
    for path, change in (
        ("/review", put),
        ("/review/label", label),
        ("/review/unlabel", unlabel),
        ("/review/add", add),
        ("/review/undo", undo),
    ):
        router.add_api_route(path, change, methods=["POST"], dependencies=list(writes))
    router.add_api_route("/review", clear, methods=["DELETE"], dependencies=list(writes))
    app.include_router(router)
    app.add_api_route("/", home, methods=["GET"], include_in_schema=False)
    app.mount("/page", Files(directory=PAGE), name="page")
