"""What users ask of jobs, checked against the world: submits, holds, retries, annotations, preemptions.

`Intake` calls it. What is refused raises CommandRefused with the next step, before anything of the command is added.
"""

import math
import re
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace

from msgspec import structs

from hpcdl.core.fold.fold import Draft
from hpcdl.core.fold.observations import observations_of, observations_of_type
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.arrays import Array, check_places, expand, named
from hpcdl.core.model.commands import CommandRefused, Entry
from hpcdl.core.model.dependency import Condition
from hpcdl.core.model.incarnation import Incarnation, IncarnationState
from hpcdl.core.model.job import ECT_CLASSES, PRIORITY, JobSpec, check_counts
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.units import count, meant, ranges, seconds_text
from hpcdl.core.model.world import Job, JobState, World, beginning_of, can_suspend, floor_of, no_such_job
from hpcdl.core.rules.dependencies import never_why, surely_before
from hpcdl.core.rules.gpu_memory import largest_gpu, never_large_enough
from hpcdl.core.rules.launchers import check_launcher
from hpcdl.core.rules.retention import as_history, is_retired

MOST_AWAITED = 200_000
"""Jobs times the jobs that they wait for, in one entry: a thousand that wait for a hundred, say."""

Add = Callable[[ev.Event], object]


class Submitting:
    """Submits of one batch, on one draft."""

    def __init__(
        self,
        draft: Draft,
        now: float,
        profiles: Profiles,
        most: int,
        add: Add,
        touched: MutableMapping[int, None],
        batch_system: str = "",
    ) -> None:
        """`most`: jobs that one submit may have. `touched`: jobs to conclude of.
        `batch_system`: with which the daemon talks, "" for none.
        """
        self._draft = draft
        self._now = now
        self._profiles = profiles.by_name
        self._learn, self._predict = profiles.learn, profiles.predict
        self._most = most
        self._add = add
        self._touched = touched
        self._batch_system = batch_system

    def take(self, command: cmd.Submit) -> tuple[int, ...]:
        """The ids of its jobs. Raises CommandRefused, and nothing of it is taken."""
        world = self._draft.world
        known = world.request_ids.get(command.request_id)
        if known is not None:
            return known
        entries = [each if isinstance(each, Entry) else Entry(each) for each in command.specs]
        number = sum(1 if each.array is None else each.array.size for each in entries)
        if not 1 <= number <= self._most:
            raise CommandRefused(f"a submit takes 1 to {self._most} jobs, got {number}")
        if world.stopping:
            raise CommandRefused("the daemon is stopping: submit again once it has been started", "stopping")
        entries = [self._checked(each, command.strict, command.elsewhere) for each in entries]
        planned = self._planned(entries)
        self._refuse_shared_folders([spec for entry, numbers in planned for spec in _specs(entry, numbers)])
        ids: list[int] = []
        for entry, numbers in planned:
            self._submit(entry, numbers, command)
            ids += numbers
        return tuple(ids)

    def _checked(self, entry: Entry, strict: bool, elsewhere: int) -> Entry:
        spec, world = entry.spec, self._draft.world
        try:
            check_counts(spec)
        except ValueError as error:
            raise CommandRefused(str(error), "too-many") from None
        try:
            check_launcher(spec)
        except ValueError as error:
            raise CommandRefused(str(error), "launcher") from None
        missing = [number for number in spec.awaits if number not in world.jobs]
        if missing and is_retired(world, missing[0]):
            raise CommandRefused(f"{as_history(missing[0])}: submit this one without waiting for it", "finished")
        if missing:
            raise CommandRefused(f"there is no job {missing[0]} to wait for: hpcdl ls --all lists them", "unknown-job")
        for batch in spec.awaits_batch:
            if batch.partition(":")[0] != self._batch_system:
                there = f"its batch system is {self._batch_system}" if self._batch_system else "it has no batch system"
                raise CommandRefused(f"the daemon cannot wait for {batch}: {there}", "batch-system")
        if spec.profile is not None and spec.profile.lower() not in self._profiles:
            names = ", ".join(sorted({profile.name for profile in self._profiles.values()})) or "none"
            hint = meant(spec.profile.lower(), self._profiles, "", text=lambda near: repr(self._profiles[near].name))
            unknown = f"there is no profile {spec.profile!r}{hint and f': {hint}'}"
            raise CommandRefused(f"{unknown}; there are {names}", "unknown-profile")
        self._refuse_other_kind(spec)
        if entry.array is not None:
            try:
                check_places(spec, entry.array)
            except ValueError as error:
                raise CommandRefused(str(error), "array") from None
        elif spec.batch_sweep:
            name = spec.batch_sweep
            raise CommandRefused(f"the batch size is that of the sweep {name}, and this job has none", "array")
        if lacks := never_large_enough(world, spec, self._batch_system):
            raise CommandRefused(
                f"it takes {lacks}; no pilot or later allocation may bring a larger one, since there is no batch "
                "system: ask for less with --gpu-memory, or say nothing of it",
                "gpu-memory",
            )
        doubts = doubts_of(world, spec, elsewhere) if strict else ()
        if doubts:
            raise CommandRefused(f"refused by --strict: {doubts[0]}", "strict")
        return structs.replace(entry, spec=self._with_deadline(spec, entry.array))

    def _refuse_other_kind(self, spec: JobSpec) -> None:
        """Raises CommandRefused for an inference with the latency model of a training, or the other way round."""
        profile = None if spec.profile is None else self._profiles[spec.profile.lower()]
        if profile is not None and profile.latency is not None and profile.latency.synchronises == spec.infers:
            own, how = ("training", "--inference") if spec.infers else ("inference", "without --inference")
            raise CommandRefused(
                f"profile {profile.name} is of {own}, the job is {spec.kind}: another --kind, or another profile "
                f"(hpcdl profile fit {how})",
                "kind",
            )

    def _planned(self, entries: Sequence[Entry]) -> list[tuple[Entry, range]]:
        """Each entry with the ids of its jobs; what they wait for is all by id."""
        found: list[tuple[Entry, range]] = []
        first = self._draft.world.next_job
        for place, entry in enumerate(entries):
            for other in (*entry.after, *(which for _, which in entry.conditions)):
                if not 0 <= other < place:
                    raise CommandRefused(
                        f"entry {place} waits for entry {other}: it must wait for earlier ones", "after"
                    )
            spec = entry.spec
            after = [*spec.after, *(number for other in entry.after for number in found[other][1])]
            more = [(kind, number) for kind, other in entry.conditions for number in found[other][1]]
            size = 1 if entry.array is None else entry.array.size
            waits = len(after) + len(more) + len(spec.awaits) - len(spec.after)
            if waits * size > MOST_AWAITED:
                raise CommandRefused(
                    f"{count(size, 'job')} that wait for {count(waits, 'job')} each are too many: have one job "
                    "wait for them all, and the others for that one",
                    "after",
                )
            if entry.after or more:
                conditions = (*spec.conditions, *((Condition(*each),) for each in more))
                spec = replace(spec, after=tuple(dict.fromkeys(after)), conditions=conditions)
                entry = structs.replace(entry, spec=spec)
            found.append((entry, range(first, first + size)))
            first += size
        return found

    def _submit(self, entry: Entry, ids: range, command: cmd.Submit) -> None:
        first, request_id, nonce = ids[0], command.request_id, command.nonce
        if entry.array is None:
            self._add(ev.JobSubmitted(first, entry.spec, request_id, nonce))
            if entry.held:
                self._add(ev.JobHeld(first))
        else:
            array = entry.array
            self._add(
                ev.ArraySubmitted(
                    first, entry.spec, request_id, array.indices, array.sweep, array.max_parallel, entry.held, nonce
                )
            )
        if entry.spec.after or entry.spec.conditions:  # what it waits for may have failed already
            self._touched.update(dict.fromkeys(ids))

    def _with_deadline(self, spec: JobSpec, array: Array | None) -> JobSpec:
        """The job with its deadline as a time. Raises CommandRefused for one that is past or cannot be worked out.

        All jobs of an array have the same: of a sweep of batch sizes that of the longest job.
        """
        if spec.ect is None:
            if spec.deadline is not None and spec.deadline < self._now:
                ago = seconds_text(self._now - spec.deadline)
                raise CommandRefused(f"the deadline was {ago} ago: choose a later one, +2h for example", "deadline")
            return spec
        sizes = () if array is None else dict(array.sweep).get(spec.batch_sweep, ())
        each = [replace(spec, batch_size=int(size), batch_sweep="") for size in sizes] or [spec]
        known = [profile for one in each if (profile := self._known_profile(one)) is not None]
        if len(known) < len(each) or spec.steps is None:
            raise CommandRefused(
                f"--deadline {spec.ect} is computed from the time on one GPU: it needs --profile and --steps, or "
                "--steps and jobs of its model, batch size and script that were seen (or give a time: +2h, 18:30)",
                "deadline",
            )
        alone_s = max(profile.seconds_to_finish(0, spec.steps, 1) for profile in known)
        return replace(spec, deadline=self._now + ECT_CLASSES[spec.ect] * alone_s)

    def _known_profile(self, spec: JobSpec) -> Profile | None:
        """The profile that it names, else what was seen of its type, at its batch size; None where that is nothing."""
        world, batch = self._draft.world, spec.batch_size
        if spec.profile is not None:
            profile = self._profiles[spec.profile.lower()]
            return profile if batch is None else profile.at_batch(batch)
        seen = observations_of(world, spec.learns_as)
        if seen is not None:
            return None if self._learn is None else self._learn(spec.learns_as, seen)
        if batch is None or self._predict is None:
            return None
        return self._predict(spec.learns_as, batch, observations_of_type(world, spec.type_name), not spec.infers)

    def _refuse_shared_folders(self, specs: Sequence[JobSpec], again: bool = False) -> None:
        """Raises CommandRefused where two jobs would resume from each other's checkpoints, in one folder.

        One after the other may, where it says so. `again`: it was taken before, and is only retried.
        """
        if all(spec.checkpoint_dir is None for spec in specs):
            return
        world = self._draft.world
        users: dict[str, list[int]] = {}
        for number in world.active:
            users.setdefault(world.jobs[number].spec.checkpoint_dir or "", []).append(number)
        taken: set[str] = set()
        for spec in specs:
            folder = spec.checkpoint_dir
            if folder is None:
                continue
            before = surely_before(world, spec) if folder in users else set()
            if spec.singleton:
                before.update(each for each in users.get(folder, ()) if world.jobs[each].spec.named_alike(spec))
            user = next((number for number in users.get(folder, ()) if number not in before), None)
            if user is not None:
                raise CommandRefused(
                    f"job {user} checkpoints into {folder} and is not finished: choose another --checkpoint-dir, "
                    f"or wait for it with --after {user}",
                    "checkpoint-dir",
                )
            earlier = [number for number in users.get(folder, ()) if number in before]
            if earlier and not again and spec.continue_from not in ("any", *map(str, earlier)):
                raise CommandRefused(
                    f"job {earlier[-1]}, which it waits for, checkpoints into {folder}: add --continue-from "
                    f"{earlier[-1]} to go on from there, or choose another --checkpoint-dir",
                    "checkpoint-dir",
                )
            if folder in taken:
                hint = ": name {index} or a sweep in it" if spec.array else ""
                raise CommandRefused(
                    f"two jobs of one submit cannot both checkpoint into {folder}{hint}", "checkpoint-dir"
                )
            taken.add(folder)

    # --- verbs -----------------------------------------------------------------------------------------------------

    def hold(self, command: cmd.Hold) -> None:
        """Adds the event, if it is not held yet. Raises CommandRefused."""
        job = unfinished(self._draft.world, command.job)
        if job.cancelling:
            raise CommandRefused(f"job {command.job} is being cancelled: there is nothing to suspend", "finished")
        if command.waiting and not job.held and job.live:
            raise CommandRefused(
                f"job {job.id} is {state_of(job)}, and only a job that waits can be held: hpcdl suspend {job.id} "
                "checkpoints it first",
                "running",
            )
        if not job.held:
            self._add(ev.JobHeld(command.job, command.after))

    def retry(self, command: cmd.Retry) -> cmd.Retried:
        """Queues it again, and with `with_dependents` those that were cancelled because of it. Raises CommandRefused.

        One that is not finished needs no retry, and nothing happens to it.
        """
        world = self._draft.world
        job = existing_job(world, command.job)
        if not job.finished:
            if command.from_start:
                step = f"hpcdl cancel {job.id}, and retry it from the start once that is done"
                raise CommandRefused(
                    f"job {job.id} is {state_of(job)}, and goes on from its last checkpoint: {step}", "running"
                )
            return cmd.Retried((), ())
        if job.outcome is JobState.DONE:
            raise CommandRefused(f"job {job.id} is DONE: submit it again for another run", "finished")
        if world.stopping:
            raise CommandRefused("the daemon is stopping: retry once it has been started", "stopping")
        failed = next((each for each in job.spec.after if _gone(world, each)), None)
        if failed is not None:
            raise CommandRefused(
                f"job {job.id} waits for job {failed}, which is {world.jobs[failed].outcome}: hpcdl retry {failed} "
                "--with-dependents retries both",
                "after",
            )
        if never := never_why(world, _retried(job)):
            raise CommandRefused(f"job {job.id} would never start: {never}: submit it again", "after")
        retired = next((each for each in job.spec.awaits if is_retired(world, each)), None)
        if retired is not None:
            raise CommandRefused(f"job {job.id} waits for a job, and {as_history(retired)}: submit it again", "after")
        self._refuse_shared_folders((job.spec,), again=True)
        beginning = max(beginning_of(world, job), floor_of(world, job).beginning) + 1
        self._again(job, beginning if command.from_start else 0)
        dependents = _cancelled_with(world, job.id)
        if not command.with_dependents:
            return cmd.Retried((job.id,), tuple(dependents))
        done, left = [job.id], []
        for number in dependents:
            other = self._draft.world.jobs[number]
            try:
                never = never_why(self._draft.world, _retried(other))
                if never or any(is_retired(world, each) for each in other.spec.awaits):
                    raise CommandRefused("it waits for another one that failed, or is history")
                self._refuse_shared_folders((other.spec,), again=True)
            except CommandRefused:
                left.append(number)
            else:
                self._again(other)
                done.append(number)
        return cmd.Retried(tuple(done), tuple(left))

    def _again(self, job: Job, beginning: int = 0) -> None:
        self._add(ev.JobRetried(job.id, beginning, job.failures.total))
        self._touched[job.id] = None


def existing_job(world: World, number: int) -> Job:
    """The job. Raises CommandRefused."""
    job = world.jobs.get(number)
    if job is None and is_retired(world, number):
        raise CommandRefused(f"{as_history(number)}: submit it again", "finished")
    if job is None:
        raise CommandRefused(no_such_job(world, number), "unknown-job")
    return job


MOST_ANNOTATIONS = 32
LONGEST_ANNOTATION = 200
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}", re.ASCII)


def check_annotations(job: Job, changes: Sequence[tuple[str, str]]) -> None:
    """Raises CommandRefused for what a job cannot be annotated with."""
    if not changes:
        raise CommandRefused("say what to write: KEY=VALUE, or KEY= to remove it", "annotation")
    for key, value in changes:
        if not _KEY.fullmatch(key):
            wrong = "a key begins with a letter, and has up to 63 letters, digits, '_', '.' and '-'"
            raise CommandRefused(f"{key[:40]!r} cannot be a key: {wrong}", "annotation")
        if len(value) > LONGEST_ANNOTATION or not value.isprintable():
            most = f"a value has up to {LONGEST_ANNOTATION} printable characters"
            raise CommandRefused(f"the value of {key} is too long, or cannot be printed: {most}", "annotation")
    if sum(map(bool, (dict(job.annotations) | dict(changes)).values())) > MOST_ANNOTATIONS:
        raise CommandRefused(f"job {job.id} would have more than {MOST_ANNOTATIONS} annotations", "annotation")


def check_priority(priority: int | None) -> int:
    """The priority. Raises CommandRefused for one that no job can have."""
    if priority is None or not -PRIORITY <= priority <= PRIORITY:
        given = "none was given" if priority is None else f"got {priority}"
        raise CommandRefused(f"the priority must be from {-PRIORITY} to {PRIORITY}, {given}", "priority")
    return priority


def unfinished(world: World, number: int) -> Job:
    """The job. Raises CommandRefused where it is finished, too."""
    job = existing_job(world, number)
    if job.finished:
        raise CommandRefused(f"job {number} is {job.outcome} already: hpcdl show {number}", "finished")
    return job


def doubts_of(world: World, spec: JobSpec, elsewhere: int = 0) -> tuple[str, ...]:
    """Why none of the nodes that are known could run such a job; () where some could, or no node is known.

    While none is here those count that were. `elsewhere`: GPUs of the largest node that pilots could hold.
    """
    nodes = [node for node in world.nodes.values() if node.gpus]
    here = [node for node in nodes if not node.lost] or nodes
    sizes = sorted((len(node.gpus) for node in here), reverse=True)
    least = min(spec.gpus_counts or (spec.gpus_min,))
    if not (sizes or elsewhere) or least <= elsewhere:
        return ()
    wide = sum(1 for size in sizes if least <= size)
    if not wide:
        many, most = count(spec.gpus_min, "GPU"), max([elsewhere, *sizes])
        return (f"it needs {many} on a node, and the largest has {most}: it waits for a larger one (hpcdl nodes)",)
    if wide < spec.nodes:
        many = f"{count(spec.nodes, 'node')} with {count(spec.gpus_min, 'GPU')} each"
        have = f"{wide} {'has' if wide == 1 else 'have'} so many"
        return (f"it needs {many}, and {have}: it waits for more nodes (hpcdl nodes)",)
    processors = max(node.cpus for node in here if least <= len(node.gpus))
    if spec.cpus is not None and 0 < processors < spec.cpus:
        many = f"{count(spec.cpus, 'processor')} on a node"
        return (f"it asks for {many}, and the largest has {processors}: it runs with fewer (hpcdl nodes)",)
    if lacks := largest_gpu(here).lack(spec.gpu_memory_mib):
        return (f"it takes {lacks}: it waits for a larger one (hpcdl nodes)",)
    return ()


def _gone(world: World, number: int) -> bool:
    before = world.jobs.get(number)
    return before is not None and before.outcome in (JobState.FAILED, JobState.CANCELLED)


def _retried(job: Job) -> Job:
    """The job as after a retry: batch jobs that it waits for are asked about again."""
    return replace(job, retried_at=math.inf)


def again_text(world: World, job: Job) -> str:
    """The command, in words, that runs a job again which FAILED or was CANCELLED: where it was cancelled because of
    others, a retry of those, if they can be retried.
    """
    first, seen, more = list[int](), {job.id}, [job]
    while more:
        each = more.pop()
        gone = [number for number in each.spec.after if _gone(world, number)]
        lost = any(is_retired(world, number) for number in (each.id, *each.spec.awaits))
        if lost or (not gone and never_why(world, each)):
            awaited = ", without what it waited for" if job.spec.awaits else ""
            return f"hpcdl submit --like {job.spec.array or job.id} submits it again{awaited}"
        first += () if gone else (each.id,)
        more += [world.jobs[number] for number in gone if number not in seen]
        seen.update(gone)
    if first == [job.id]:
        return f"hpcdl retry {job.id} runs it again"
    if job.cancelling:  # by its user: no dependent
        return f"hpcdl retry {ranges(first)}, and then hpcdl retry {job.id}, runs it again"
    return f"hpcdl retry {ranges(first)} --with-dependents retries it, after what it waits for"


def _cancelled_with(world: World, number: int) -> list[int]:
    """Those that were cancelled because they waited for it, directly or not, in the order of their ids."""
    found, more = set[int](), [number]
    while more:
        for each in world.awaited.get(more.pop(), ()):
            job = world.jobs.get(each)
            if job is not None and each not in found and job.outcome is JobState.CANCELLED and not job.cancelling:
                found.add(each)
                more.append(each)
    return sorted(found)


def _specs(entry: Entry, numbers: range) -> Sequence[JobSpec]:
    """Of an entry's jobs, as far as anything can be wrong with them that is right with the template."""
    spec, array = entry.spec, entry.array
    if array is None or (spec.checkpoint_dir is None and not named(spec.command[:1])):
        return (spec,)
    try:
        return expand(spec, array, numbers[0])
    except ValueError as error:
        raise CommandRefused(str(error), "array") from None


def preemptible(world: World, job: Job) -> Incarnation:
    """The incarnation that may be preempted now: suspended by the handshake, and placed again at once.

    Raises CommandRefused, with the next step.
    """
    running = job.running
    if world.stopping:
        raise CommandRefused("the daemon is stopping: hpcdl daemon start, then again", "stopping")
    if running is None or running.state is not IncarnationState.RUNNING or running.ending is not None or job.cancelling:
        raise CommandRefused(
            f"job {job.id} is {state_of(job)}, not training: again once it runs (hpcdl why {job.id})", "not-running"
        )
    if job.held:
        raise CommandRefused(f"job {job.id} is held: hpcdl resume {job.id} first", "not-running")
    if job.spec.signal == "none":
        raise CommandRefused(
            f"job {job.id} was submitted with --signal none, so nobody can ask it to checkpoint: "
            "submit it with a signal that it answers",
            "no-checkpoint",
        )
    if not can_suspend(job):
        raise CommandRefused(
            f"job {job.id} has shown no way to checkpoint: call hpcdl.attach() in its script, "
            "or submit it with --signal",
            "no-checkpoint",
        )
    return running
