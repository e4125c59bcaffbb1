"""``sdm serve`` and ``sdm mcp``: a saved model behind HTTP, and as tools for agents."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from torchsdm.cli import options
from torchsdm.errors import InvalidInputError

TOKEN_VARIABLE = "TORCHSDM_TOKEN"


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--host", default="127.0.0.1", help="Address. Anything but loopback needs a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="Port; 0 picks a free one.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"File with a token, which clients send as 'Authorization: Bearer TOKEN'. Default: {TOKEN_VARIABLE}, if set.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Another host name to answer to, as behind a proxy; needs a token; can be repeated.",
)
@click.option("--texts", is_flag=True, help="Include the texts of training examples in explanations.")
@click.option("--watch", is_flag=True, help="Serve a new model as soon as one is saved to MODEL.")
@options.guard_file(help="Save the drift guard to FILE on shutdown, when it is raised and when it is reset.")
@click.option(
    "--guard-by-source",
    is_flag=True,
    help='Guard the inputs of each source by itself; requests name them in "sources".',
)
@click.option("--check-rate", type=float, metavar="SHARE", help="Draw this share of the admitted answers to check.")
@click.option("--check-per-week", type=float, metavar="N", help="Draw about so many answers in a week.")
@click.option("--max-inputs", type=click.IntRange(1), default=256, help="Most inputs per request.")
@click.option("--max-megabytes", type=click.IntRange(1), default=64, help="Largest body of a request.")
@click.option(
    "--max-waiting", type=click.IntRange(1), default=256, help="Most waiting requests; further ones get status 429."
)
@click.option("--batch-rows", type=click.IntRange(1), default=1024, help="Most states to decide on at once.")
@click.option("--body-seconds", type=click.FloatRange(0.1), default=30.0, help="Time for a client to send a request.")
@click.option(
    "--drain-seconds", type=click.FloatRange(0.1), default=30.0, help="Time to answer waiting requests on shutdown."
)
@options.language_model
@options.ray(help="Keep the support on a Ray cluster.")
def serve(
    model: str,
    token_file: Path | None,
    max_megabytes: int,
    language_model: dict[str, Any],
    backend: str | None,
    **settings: Any,
) -> None:
    r"""Serve decisions of a saved MODEL over HTTP, as JSON; /openapi.json describes the routes.

    Requests that arrive together are answered together. By default only this machine can reach the service. With a
    token, requests that change the model must send it; if the address is not loopback, or with --allow-host, so must
    all others but /v1/health. On SIGTERM or Ctrl-C the service answers the requests that it has, and exits.

    \b
    Examples:
      sdm serve model --port 8000
      curl -s localhost:8000/v1/decide -H 'content-type: application/json' -d '{"texts": ["A film to remember."]}'
      sdm serve model --host 0.0.0.0 --token-file token --watch
    """
    token = _token(token_file)
    from torchsdm.application import keep_ledger_in_cache
    from torchsdm.service import MEGABYTE, ServiceSettings, run_service

    keep_ledger_in_cache()
    run_service(
        model,
        ServiceSettings(token=token, max_body=max_megabytes * MEGABYTE, **settings),
        backend=backend,
        **language_model,
    )


def _token(file: Path | None) -> str | None:
    """The token in a file, or else in the environment; None if there is neither."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"--token-file {file} cannot be read: {error}.") from error


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--texts", is_flag=True, help="Quote the texts of training examples in explanations.")
@click.option("--writable", is_flag=True, help="Let agents add examples to the support. Every change can be undone.")
@options.language_model
def mcp(model: str, texts: bool, writable: bool, language_model: dict[str, Any]) -> None:
    r"""Offer a saved MODEL to agents, as tools of the Model Context Protocol over standard input and output.

    The tools are decide, explain and describe_model; with --writable also add_example.

    \b
    Example, in the settings of an agent:
      {"mcpServers": {"torchsdm": {"command": "sdm", "args": ["mcp", "/path/to/model"]}}}
    """
    from torchsdm.application import LiveModel, keep_ledger_in_cache
    from torchsdm.files import login_name
    from torchsdm.service import create_tools

    keep_ledger_in_cache()
    live = LiveModel.open(model, who="sdm mcp", writable=writable, exclusive=False, **language_model)
    who = f"{login_name()}, through an agent"
    create_tools(live, texts=texts, writable=writable, who=who).run("stdio")
