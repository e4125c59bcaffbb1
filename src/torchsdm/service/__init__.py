"""A saved model behind HTTP: a service that programs can rely on, on FastAPI and uvicorn.

- ``app`` puts the application together and runs it;
- ``routes`` and ``inference_protocol`` (the same in the words of the Open Inference Protocol) have what can be asked,
  ``inspector`` what the page asks; ``schemas`` the shapes of requests and answers, ``documentation`` examples of them;
- ``serving`` holds the model that is served, and replaces it; ``batching`` the one thread that asks it;
- ``security`` and ``failures`` are what every request passes, ``metrics`` what is counted;
- ``tools`` offers the model to agents, over the Model Context Protocol.

FastAPI and its kind belong to the extra ``serve``: nothing here is imported before ``create_app`` or ``run_service``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torchsdm.errors import import_extra
from torchsdm.service.settings import MEGABYTE, ServiceSettings
from torchsdm.service.tools import create_tools

__all__ = ["MEGABYTE", "ServiceSettings", "create_app", "create_tools", "run_service"]


def create_app(path: Any, settings: ServiceSettings | None = None, **opening: Any) -> Any:
    """The service of a saved model as an ASGI application, for uvicorn or any other server.

    ``opening`` says how: ``model``, ``device`` and ``batch_tokens``, as for ``LiveModel.open``.
    """
    return _app().create_app(path, settings or ServiceSettings(), **opening)


def run_service(path: Any, settings: ServiceSettings | None = None, **opening: Any) -> None:
    """Serve a saved model until interrupted; requests that have arrived by then are answered first."""
    _app().run_service(path, settings or ServiceSettings(), **opening)


def _app() -> Any:
    for name in ("fastapi", "httptools", "prometheus_client", "uvicorn"):
        import_extra(name, "serve", "sdm serve")
    return import_module("torchsdm.service.app")
