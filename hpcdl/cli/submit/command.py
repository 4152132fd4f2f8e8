"""`hpcdl submit`: from a command line, a batch script or a file of jobs to one request for the daemon.

Options become a job in job.py, a file's in jobs_file.py; send.py sends it, or keeps it in the spool while no daemon
runs. A job that cannot be hpcdl's is refused here, or with --as passed on to the batch system (drop_in.py).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from hpcdl.batch.system import systems
from hpcdl.cli import completion
from hpcdl.cli.job_row import connect
from hpcdl.cli.job_selection import ONE_JOB
from hpcdl.cli.output import IDS_ONLY, Output, outputs_as, print_fields, say
from hpcdl.cli.params import OneOf
from hpcdl.cli.submit.job import JobRequest, default_name, here, job_request, others_folder
from hpcdl.cli.submit.options import AFTER, job_options
from hpcdl.cli.submit.send import send, show, tell
from hpcdl.client import ApiError, Client, ClientError
from hpcdl.core.model.arrays import indices_of, literal
from hpcdl.core.model.frozen import to_json

if TYPE_CHECKING:  # most submits have no batch script
    from hpcdl.batch.script import BatchScript
    from hpcdl.cli.job_selection import Word
    from hpcdl.cli.submit.like import Template


class JobCommand(click.Command):
    """The command: it applies the defaults of settings, and knows whether `--` stood before COMMAND."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from hpcdl.cli.submit.options import write_options

        write_options(self, ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        wrong = put_defaults(ctx)
        try:
            rest = super().parse_args(ctx, args)
        except click.BadParameter as error:
            raise told_origin(ctx, error) from None
        if wrong is not None:
            raise wrong
        before = len(words) - len(ctx.params.get("command") or ()) - 1
        ctx.meta[_PLAIN] = 0 <= before < len(words) and words[before] == "--"
        return rest


_PLAIN = "hpcdl.submit.plain"


def _submit_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The submit command of a batch system: sbatch, bsub. Raises BadParameter with those that there are."""
    names = [each.submit_name for each in systems()]
    return None if value is None else str(OneOf(names).convert(value, param, ctx))


def _one_model(ctx: click.Context, param: click.Parameter, value: "tuple[Word, ...]") -> "Word | None":
    if len(value) > 1:
        raise click.BadParameter("a new job is like one job, and several are named", ctx, param)
    return value[0] if value else None


@click.command(cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options
@click.option(
    "-f", "--file", metavar="FILE",
    help="Submit the jobs of a YAML file, in place of COMMAND; - is the standard input.",
)  # fmt: skip
@click.option(
    "--like", "model_job", type=ONE_JOB, metavar="JOB", multiple=True, callback=_one_model,
    help="As this job was submitted, finished or not, but for the options and the COMMAND that are given.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Submit nothing: say what would be, where it could run now, and when.")
@click.option("--strict", is_flag=True, help="Refuse what no node that is known could run, or is not on this machine.")
@click.option(
    "--git/--no-git",
    default=True,
    help="Record the commit and branch that its folder is at, and whether files were changed.  [default: --git]",
)
@click.option("--request-id", metavar="ID", help="A submit repeated with the same id is the same job.")
@click.option("--no-spool", is_flag=True, help="Fail where no daemon runs; else the next one takes the submit in.")
@click.option(
    "--as", "like", callback=_submit_name, metavar="NAME",
    help="COMMAND is the arguments of sbatch or bsub, whose words are answered; for jobscripts/sbatch and bsub.",
)  # fmt: skip
@click.option("--else", "other", metavar="FILE", help="With --as: what takes jobs that are not for hpcdl.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...", shell_complete=completion.files)
@outputs_as(IDS_ONLY, "printed")
def submit(
    ctx: click.Context,
    /,
    printed: Output,
    command: tuple[str, ...],
    file: str | None,
    model_job: "Word | None",
    dry_run: bool,
    strict: bool,
    git: bool,
    request_id: str | None,
    no_spool: bool,
    like: str | None,
    other: str | None,
    **given: Any,
) -> None:
    """Queue COMMAND as a job: hpcdl submit --gpus 1:3 -- python train.py --lr 0.1

    \b
    Many jobs by one submit, and never more than 4 of them at a time:
        hpcdl submit --array 1-100 --max-parallel 4 -- python train.py --seed {index}
        hpcdl submit --sweep lr=0.1,0.01 --sweep bs=32,64 -- python train.py

    A script with #SBATCH or #BSUB lines, named without -- before it, is asked for GPUs, nodes, name, dependencies,
    array, folder and environment; options given here win, and what is ignored is said.

    It gets the environment of this shell, as with sbatch and bsub, except the shell's and the batch step's own
    variables and names that look like secrets (TOKEN, SECRET, PASSW, CREDENTIAL or AUTH in the name, or KEY, PASS,
    PASSPHRASE, PAT or DATABASE_URL as its last word): those with --env NAME.
    """
    call = SubmitCall(ctx, connect(ctx), command, like, other)
    leaves = like is not None and not call.chained  # what hpcdl cannot run to the batch system
    batch: BatchScript | None = None
    template: Template | None = None
    if model_job is not None:
        if file is not None or like is not None:
            raise click.UsageError(f"--like is about one job: leave out {'--file' if file else '--as'}", ctx)
        template, job = call.job_like(model_job, given)
        found, entries, no_spool = [job], [job.entry()], True
    elif file is not None:
        from hpcdl.cli.submit.jobs_file import read

        if command or like is not None:
            raise click.UsageError("with --file the commands are in the file: leave COMMAND out", ctx)
        options = [each for each in given if ctx.get_parameter_source(each) is ParameterSource.COMMANDLINE]
        if options:
            flag = options[0].replace("_", "-")
            raise click.UsageError(f"--{flag}: with --file it belongs into the file, under defaults:", ctx)
        found, entries = read(ctx, file)
    else:
        if not command and like is None:
            raise click.UsageError("say what to run: hpcdl submit -- COMMAND, --file FILE or --like JOB", ctx)
        job, batch = call.job(given, ping=no_spool)
        found, entries = [job], [job.entry()]
    doubts = dict.fromkeys(doubt for each in found for doubt in each.doubts())
    say_misplaced(ctx, command if like is None else ())
    notes = _notes(found, printed)
    if strict and doubts:
        raise click.ClickException(f"refused by --strict: {next(iter(doubts))}")
    if request_id is None:  # of one that is repeated, the folder may be its own by now
        call.refuse_folders(found)
    if git:
        add_git(found, entries)
    body: dict[str, Any] = {"request_id": request_id or os.urandom(16).hex(), "jobs": entries}
    if strict or leaves:  # what no node could run is the batch system's
        body["strict"] = True
    if dry_run:
        answer = call.client.request("POST", "/v1/jobs", body | {"dry_run": True}, wait_s=30.0)
        if template is not None:
            answer |= {"like": template.id, "specs": entries}
            if printed is Output.TABLE:
                print_fields(list(template.changes(found[0].spec)))
        if batch is not None and like is None:
            _tell_left_out(batch, given)
        tell(_with_notes(answer, found, notes, printed), printed, doubts)
        return
    try:
        answer = send(call.client, body, number=sum(each.size for each in found), spool=not (no_spool or leaves))
    except ApiError as error:
        call.fail(error)
    if batch is not None:
        if like is not None:
            from hpcdl.cli.submit import drop_in

            if answer["jobs"]:  # else it is spooled, which was said
                drop_in.tell(batch, int(answer["jobs"][0]["id"]), doubts)
            return
        _tell_left_out(batch, given)
    show(_with_notes(answer, found, notes, printed), printed, doubts)


def _tell_left_out(batch: "BatchScript", given: Mapping[str, Any]) -> None:
    """Says what a batch script asks for that hpcdl leaves out, and what it does not ask for."""
    for each in batch.asked.ignored:
        say(str(each))
    if not batch.asked.gpus and not given["gpus"][0]:
        say(f"{batch.file} asks for no GPU; a job of hpcdl has at least 1: --gpus N")


_MISPLACED = frozenset({
    "--gpus", "--gpu-memory", "--cpus", "--mem", "--time", "--deadline", "--priority", "--retries", "--array",
    "--max-parallel", "--after", "--after-any", "--after-failed", "--after-start", "--notify", "--tag", "--share",
})  # fmt: skip
"""Options that hardly any script has of its own."""


def say_misplaced(ctx: click.Context, command: Sequence[str]) -> None:
    """On a terminal, say that an option of hpcdl stands behind the command, which gets it; not after a `--`."""
    from hpcdl.cli.submit import starts_over

    names = [word.partition("=")[0] for word in command]
    place = next((place for place, name in enumerate(names) if place and name in _MISPLACED), 0)
    if not place or ctx.meta[_PLAIN] or "--" in names or starts_over.quiet(os.environ):
        return
    if ctx.get_parameter_source(names[place][2:].replace("-", "_")) is ParameterSource.COMMANDLINE:
        return
    words = command[place : place + 2] if command[place] == names[place] else command[place : place + 1]
    option, program = " ".join(words)[:100], os.path.basename(starts_over.script_of(command) or command[0])
    say(
        f"{option} goes to {program}: options of hpcdl stand before the command, hpcdl {ctx.info_name} {option} "
        f"{command[0]} … (-- before the command: it is meant so)"
    )


def _notes(found: Sequence[JobRequest], output: Output) -> list[str]:
    """Of each request the note that its script starts over after a suspend, "" for none; nothing where nobody reads."""
    from hpcdl.cli.submit import starts_over

    if output is Output.QUIET or (output is Output.TABLE and starts_over.quiet(os.environ)):
        return []
    return [starts_over.note(each.spec) for each in found]


def _with_notes(
    answer: dict[str, Any], found: Sequence[JobRequest], notes: Sequence[str], output: Output
) -> dict[str, Any]:
    """The answer, with the notes in its rows as JSON; else they are printed, each once."""
    if output is Output.JSON and any(notes):
        texts = [text for each, text in zip(found, notes, strict=True) for _ in range(each.size)]
        rows = [row | {"starts_over": text} if text else row for row, text in zip(answer["jobs"], texts, strict=False)]
        return answer | {"jobs": rows}
    for text in dict.fromkeys(notes):
        if text:
            say(text)
    return answer


@dataclass(frozen=True, slots=True)
class SubmitCall:
    """A command line. `like`: sbatch or bsub where `command` is their arguments; `other`: what takes jobs that are not
    for hpcdl then.
    """

    ctx: click.Context
    client: Client
    command: tuple[str, ...]
    like: str | None
    other: str | None

    @property
    def chained(self) -> bool:
        """Whether a job of hpcdl's submits the next link of its chain as a batch job."""
        if self.like is None:
            return False
        from hpcdl.cli.submit import drop_in

        return drop_in.follows_own(self.like, self.command)

    def fail(self, error: Exception) -> NoReturn:
        """Raise `error`, for hpcdl cannot take the job; with --as become the command of the batch system."""
        if self.like is None:
            raise error from None
        from hpcdl.cli.submit import drop_in

        drop_in.pass_on(self.like, self.other, self.command, str(error), self.client.home)

    def job(self, given: Mapping[str, Any], *, ping: bool) -> "tuple[JobRequest, BatchScript | None]":
        """The job that the options and the command say, and the batch script where the command is one, which is kept.

        `ping`: nothing is kept where no daemon answers.
        """
        values, words, batch = dict(given), self.command, None
        if self.like is not None or (not self.ctx.meta[_PLAIN] and os.path.isfile(self.command[0])):
            from hpcdl.batch.options import BadLine
            from hpcdl.batch.script import command_of

            try:
                batch = self._batch()
                if batch is not None:
                    if ping or (self.like is not None and not self.chained):
                        self.client.get("/v1/config")
                    filled = bool(given["array"] or given["sweep"])
                    words = command_of(batch, self.client.home, str(here()), filled=filled)
                    values |= self._values_of(batch, given)
            except (BadLine, ClientError) as error:
                self.fail(click.ClickException(str(error)))
        try:
            return job_request(values, words, here()), batch
        except ValueError as error:
            self.fail(click.UsageError(str(error), self.ctx))

    def job_like(self, word: "Word", given: Mapping[str, Any]) -> "tuple[Template, JobRequest]":
        """The job that this word names, and the new one that is like it. Says what is not carried."""
        from hpcdl.cli.job_selection import one_job
        from hpcdl.cli.submit.like import Template

        typed = {each for each in given if self.ctx.get_parameter_source(each) is ParameterSource.COMMANDLINE}
        row = self.client.get(f"/v1/jobs/{one_job(self.client, word)}")["job"]
        try:
            template = Template.of(row)
            request = template.request(given, typed, self.command, here())
        except ValueError as error:
            raise click.UsageError(str(error), self.ctx) from None
        if left := template.left_out(typed):
            say(left)
        return template, request

    def _batch(self) -> "BatchScript | None":
        """The batch script that is to be submitted; None: the command is one without. Raises BadLine, ClientError."""
        from hpcdl.batch.script import find

        if self.like is None:
            found = find(self.command[0])
            return None if found is None else found[0].read(self.command[0], found[1], self.command[1:])
        from hpcdl.cli.submit import drop_in

        batch = drop_in.batch_of(
            self.like,
            self.command,
            os.environ,
            lambda: self.client.get("/v1/nodes")["nodes"],
            only_hpcdl=self.chained,
        )
        return drop_in.waiting_for(self.client, self.like, self.other, batch)

    def _values_of(self, batch: "BatchScript", given: Mapping[str, Any]) -> dict[str, Any]:
        """What the batch script says in place of options, as far as the command line leaves that to it."""
        asked = batch.asked
        typed = {each for each in given if self.ctx.get_parameter_source(each) is ParameterSource.COMMANDLINE}
        nodes = given["nodes"][1] if "nodes" in typed else asked.nodes or 1
        values: dict[str, Any] = {"exports": asked.exports, "tasks": batch.command.tasks_of(batch, nodes)}
        if given["name"] is None:
            values["name"] = literal(asked.name or default_name((batch.file,)))
        if asked.gpus and "gpus" not in typed:
            values["gpus"] = (asked.gpus, asked.gpus, ())
        if asked.nodes and "nodes" not in typed:
            values["nodes"] = (asked.nodes, asked.nodes)
        if not typed.intersection(AFTER):
            values["after"] = asked.awaits
        values["singleton"] = asked.singleton or given["singleton"]
        if asked.cwd and not given["cwd"]:
            values["cwd"] = asked.cwd
        preset, grace_s = asked.signal or (None, None)
        found = {"signal": preset, "grace": grace_s, "cpus": asked.cpus, "mem": asked.memory_mib, "time": asked.time_s}
        values |= {name: value for name, value in found.items() if value is not None and name not in typed}
        if asked.array is not None and not given["array"]:
            values["array"] = indices_of(asked.array.indices)
            values["max_parallel"] = given["max_parallel"] or asked.array.most or None
        return values

    def refuse_folders(self, found: Sequence[JobRequest]) -> None:
        """Refuse jobs whose --checkpoint-dir is another job's, as far as that can be seen here."""
        if all(each.spec.checkpoint_dir is None for each in found):
            return
        from hpcdl.wire.access import AccessError, read_access

        try:
            instance = read_access(self.client.home).instance
        except AccessError:
            return  # whoever takes it in from the spool sees
        for each in found:
            why = others_folder(each.spec, each.array, instance)
            if why:
                self.fail(click.ClickException(why))


def add_git(found: Sequence[JobRequest], entries: Sequence[dict[str, Any]]) -> None:
    """Put into the entries which commit is checked out in the folders of their jobs."""
    from hpcdl.cli.submit.git import WorkTrees

    trees = WorkTrees()
    for each, entry in zip(found, entries, strict=True):
        state = trees.of(each.spec.cwd)
        if state is not None:
            entry["git"] = to_json(state)


_META = "hpcdl.defaults"


def put_defaults(ctx: click.Context) -> Exception | None:
    """Set the defaults of submit that hold in this folder, before the arguments are read.

    Returns what is wrong with a settings file, for the caller to raise once `--help` has had its turn.
    """
    home, here = ctx.find_root().obj, _here()
    if ctx.resilient_parsing or _nothing_is_set(home, here):
        return None
    from hpcdl.config.layers import ConfigError
    from hpcdl.config.settings import load_submit

    try:
        found = load_submit(home, here)
    except (ConfigError, OSError) as error:
        return error
    ctx.meta[_META] = {option: origin for option, (_, origin) in found.items()}
    ctx.default_map = {option: value for option, (value, _) in found.items()}
    return None


def told_origin(ctx: click.Context, error: click.BadParameter) -> Exception:
    """The error as it is, or with the place of the default that is wrong where no option on the line is."""
    from hpcdl.config.layers import ConfigError

    name = error.param.name if error.param is not None else None
    if name is None or ctx.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
        return error
    return ConfigError(f"{ctx.meta[_META].get(name, 'default')}: submit: {name}: {error.message}")


def _nothing_is_set(home: Path, here: Path) -> bool:
    """Whether none of the files and variables is there that `load_submit` looks at.

    Most submits find none, and need not wait for what reads settings.
    """
    if any(name.startswith(_PREFIXES) for name in os.environ):
        return False
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.environ.get("HOME", ""), ".config")
    places: list[Path | str] = [home / "config.yaml", f"{base}/hpcdl/config.yaml", "/etc/hpcdl/config.yaml"]
    places += [folder / "hpcdl.yaml" for folder in (here, *here.parents)]
    return not any(os.path.lexists(place) for place in places)


_PREFIXES = ("HPCDL_SUBMIT_", "HPCDL_SITE", "HPCDL_PROJECT")


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")
