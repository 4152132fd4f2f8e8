"""`hpcdl init`: writes a training script for a framework, and a file of jobs, which run as they are.

The templates are the files beside this one. Nothing that is there is overwritten.
"""

import os
from pathlib import Path

import click

from hpcdl.cli.output import Output, outputs, print_json
from hpcdl.cli.params import OneOf, replace_file

FRAMEWORKS = {
    "pytorch": "PyTorch",
    "hf": "Hugging Face's Trainer",
    "lightning": "Lightning",
    "keras": "Keras",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "python": "no framework",
}
"""Name -> what it is called. The first is the default."""

SCRIPT, JOBS = "train.py", "jobs.yaml"


@click.command()
@click.argument("framework", type=OneOf(list(FRAMEWORKS)), default=next(iter(FRAMEWORKS)))
@click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), metavar="DIR",
              help="The folder to write them into.  [default: here]")  # fmt: skip
@outputs
def init(ctx: click.Context, framework: str, folder: Path, output: Output) -> None:
    """Write a training script and a file of jobs to begin with: hpcdl init pytorch

    train.py trains as it stands, and can be suspended; jobs.yaml has a sweep of it. Put your model, data and options in
    their place. Run by hand where hpcdl is not installed, train.py is plain training, without checkpoints. Files that
    are there are left as they are.
    """
    files = {folder / SCRIPT: framework, folder / JOBS: "jobs"}
    for path in files:
        if os.path.lexists(path):
            raise click.ClickException(f"{path} is there already: nothing was written; name another folder with --dir")
    folder.mkdir(parents=True, exist_ok=True)
    for path, template in files.items():
        text = Path(__file__).with_name(f"{template}.template").read_text(encoding="utf-8")
        replace_file(path, text, 0o644)
    if output is Output.JSON:
        print_json({"framework": framework, "files": [str(path) for path in files]})
    elif output is Output.QUIET:
        click.echo("\n".join(str(path) for path in files))
    else:
        click.echo(_following(framework, folder))


def _following(framework: str, folder: Path) -> str:
    some = "--epochs 1" if "--epochs" in (folder / SCRIPT).read_text(encoding="utf-8") else "--steps 20"
    following = {
        f"cd {folder}": "",
        f"python {SCRIPT} {some}": "train a little, by hand; hpcdl need not be installed there",
        "hpcdl daemon start": "--emulate-gpus 4 where there is no GPU",
        f"hpcdl submit --file {JOBS}": "a job for each learning rate",
        "hpcdl ls": "",
    }
    if folder == Path():
        del following[f"cd {folder}"]
    lines = [f"  {command:<33}{what}".rstrip() for command, what in following.items()]
    return "\n".join([f"wrote {folder / SCRIPT} ({FRAMEWORKS[framework]}) and {folder / JOBS}; next:", *lines])
