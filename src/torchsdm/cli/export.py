"""``sdm export``: a saved model as a folder that decides with NumPy alone."""

from __future__ import annotations

from pathlib import Path

import click

from torchsdm.cli._options import json_option, output_option, say


@click.command()
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@output_option("Folder for the export.", required=True)
@json_option
def export(model: Path, output: Path, as_json: bool) -> None:
    r"""Write a saved MODEL as a folder that decides on states with NumPy alone, without torch and torchsdm.

    The folder has two files: sdm_model.npz and the module sdm_numpy.py, whose load(FOLDER).decide(states) gives the
    decisions of MODEL. It reads states, not texts, and has no drift guard and no explanations.

    \b
    Example:
      sdm export model -o exported
    """
    from torchsdm.application import export_model

    sizes = export_model(model, output)
    text = f"{output}: {sum(sizes.values()) / 1e6:.1f} MB in {' and '.join(sizes)}, to copy to where it decides."
    say({"export": str(output), "bytes": sizes}, text, as_json)
