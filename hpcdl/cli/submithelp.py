"""How `hpcdl submit --help` lists its options: by what they are about."""

import click

SECTIONS: dict[str, str] = {
    "The job": "name env cwd git after hold priority weight deadline",
    "GPUs, nodes and speed": "gpus nodes rescale profile steps model accuracy",
    "Many jobs at once": "array sweep max_parallel file",
    "Checkpoints and failures": "grace signal checkpoint_dir continue_from resumes progress "
    "progress_regex retries stall notify",
}
"""Title -> names of parameters. What stands in none is listed last."""


def write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """In place of `format_options` of click, which lists all in one piece."""
    options = [each for each in command.get_params(ctx) if isinstance(each, click.Option)]
    lines = {each.name: each.get_help_record(ctx) for each in options}
    for title, names in SECTIONS.items():
        with formatter.section(title):
            formatter.write_dl([line for name in names.split() if (line := lines.pop(name)) is not None])
    with formatter.section("This submit"):
        formatter.write_dl([line for line in lines.values() if line is not None])
