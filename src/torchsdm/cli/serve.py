"""``sdm serve``: a saved model behind HTTP."""

from __future__ import annotations

from pathlib import Path

import click

from torchsdm.cli._options import LanguageModel, guard_option, language_model_options


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address. Anything but loopback opens it to the network."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 picks a free one."
)
@click.option("--max-inputs", type=click.IntRange(1), default=256, show_default=True, help="Most inputs per request.")
@click.option("--texts", is_flag=True, help="Include the texts of training examples in explanations.")
@guard_option("Keep the drift guard in FILE when the service ends, when it is raised and when it is reset.")
@language_model_options
def serve(
    model: str,
    host: str,
    port: int,
    max_inputs: int,
    texts: bool,
    guard_file: Path | None,
    language_model: LanguageModel,
) -> None:
    r"""Serve decisions of a saved MODEL over HTTP, as JSON.

    There is no authentication: put it behind a server that has it before you open it to a network.

    \b
    Example:
      sdm serve model --port 8000
      curl -s localhost:8000/decide -H 'content-type: application/json' -d '{"texts": ["A film to remember."]}'
    """
    from torchsdm.service import run_service

    run_service(language_model.open(model), host, port, max_inputs, texts=texts, guard_file=guard_file)
