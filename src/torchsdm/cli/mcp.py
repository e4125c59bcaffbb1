"""``sdm mcp``: a saved model as tools for agents."""

from __future__ import annotations

import click

from torchsdm.cli._options import LanguageModel, language_model_options


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--texts", is_flag=True, help="Quote the texts of training examples in explanations.")
@click.option("--writable", is_flag=True, help="Let agents add examples to the support. Every change can be undone.")
@language_model_options
def mcp(model: str, texts: bool, writable: bool, language_model: LanguageModel) -> None:
    r"""Offer a saved MODEL to agents, as tools of the Model Context Protocol over standard input and output.

    The tools are decide, explain and describe_model; with --writable also add_example.

    \b
    Example, in the settings of an agent:
      {"mcpServers": {"torchsdm": {"command": "sdm", "args": ["mcp", "/path/to/model"]}}}
    """
    from torchsdm.application import LiveModel
    from torchsdm.model import login_name
    from torchsdm.service import create_tools

    live = LiveModel.open(
        model,
        model=language_model.reference,
        device=language_model.device,
        batch_tokens=language_model.batch_tokens,
        who="sdm mcp",
        writable=writable,
        exclusive=False,
    )
    who = f"{login_name()}, through an agent"
    create_tools(live, texts=texts, writable=writable, who=who).run("stdio")
