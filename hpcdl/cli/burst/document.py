"""The problem that a command of `hpcdl burst` is about: a JSON file, stdin or a model that comes with hpcdl.

Every command of `hpcdl burst` reads it here; what a problem may say is checked in `hpcdl.deeppool.problem`.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.output import escape
from hpcdl.cli.params import Finite, check_input
from hpcdl.core.model.units import one_of

if TYPE_CHECKING:
    from hpcdl.deeppool.problem import BurstProblem

PROBLEM = click.argument("problem", metavar="PROBLEM.json|MODEL")
GPUS = click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs instead of the file's.")
BATCH = click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Global batch instead of the file's.")
AMPLIFICATION = Finite(min=0, max=1e6, min_open=True)


def read_document(name: str) -> dict[str, Any]:
    """The JSON object of a file, of stdin (`-`) or of a model. Raises ClickException."""
    from hpcdl.deeppool.models import model_document, model_names

    path = Path(name)
    try:
        if name == "-":
            value = json.load(sys.stdin)
        elif name in model_names() and not path.exists():
            return model_document(name)
        else:
            if not path.exists() and path.parent == Path() and not path.suffix:
                near = one_of(name, model_names())
                raise click.ClickException(f"there is no file {name}, and no model of that name: {near}")
            check_input(path)
            value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise click.ClickException(f"{escape(name)} is not JSON: {what}") from None
    if not isinstance(value, dict):
        raise click.ClickException(f"{escape(name)}: the problem must be a JSON object")
    return value


def read_with(name: str, **instead: Any) -> "BurstProblem":
    """The problem, with values of the command line in place of the document's. Raises ClickException.

    A limit or a budget takes the place of both.
    """
    from hpcdl.deeppool.problem import BurstProblemError, read_problem

    given = {key: value for key, value in instead.items() if value is not None}
    if given.keys() & {"limit", "budget"}:
        given = {"limit": None, "budget": None} | given
    document = read_document(name) | given
    try:
        return read_problem(document)
    except BurstProblemError as error:
        raise click.ClickException(f"{escape(name)}: {error}") from None
