"""`hpcdl demo`: a paper's job set under `marble`, then under `fifo-exclusive`, compared and checked.

`episode` runs one policy, `compare` writes the report, `watch` prints what happens.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hpcdl.client import ClientError
from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model.profile import Profile, ProfileError
from hpcdl.daemon.launch import LaunchError
from hpcdl.demo.compare import jobs_table, notes, reduction, runs_table, simulate_again, text_of, truth_text, write
from hpcdl.demo.episode import DemoError, Episode, JobSet, handled, load_set, play
from hpcdl.sim.validation import Comparison

SCALE = 20.0
"""Twice as fast would double what each second of our own overhead counts; half as fast takes minutes."""
REPORT = Path("hpcdl-demo-report")
POLICIES = ("marble", "fifo-exclusive")
INTERRUPTED = 130
TRIES = 3
"""A pause of a busy machine can turn two events round; what the simulator does wrong, it does every time."""


def main(set_number: int = 3, scale: float | None = None, report: Path | None = None) -> int:
    """Runs the demo; 0 only if under both policies every job is DONE and verified, and the simulator does as the daemon
    did. Says what went wrong, and where."""
    scale = SCALE if scale is None else scale
    for name in [name for name in os.environ if name.startswith("HPCDL_")]:
        del os.environ[name]  # settings of the user's own daemon must not change what is shown
    if not 0.1 <= scale <= 1000:
        return _fail(f"--scale {scale:g}: choose from 0.1 to 1000")
    try:
        jobset = load_set(set_number)
        profiles = load_profiles([conf_folder() / "profiles"])
        folder = (report or REPORT).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        homes = Path(tempfile.mkdtemp(prefix="hpcdl-demo-"))
    except (ValueError, ProfileError, OSError) as error:
        return _fail(str(error))
    print(f"MARBLE's job set {jobset.number} on one node with {jobset.gpus} emulated GPUs, {scale:g} times as fast.")
    print("\n".join(notes(scale)))
    played: list[tuple[Episode, Comparison]] = []
    try:
        with _ended_by_signals():
            played = [_play_and_simulate(homes, policy, jobset, scale, profiles) for policy in POLICIES]
            episodes = [episode for episode, _ in played]
            files = write(folder, jobset, episodes[0], episodes[1], profiles)
    except KeyboardInterrupt:
        print("hpcdl demo: interrupted; everything that it started is stopped", flush=True)
        shutil.rmtree(homes, ignore_errors=True)
        return INTERRUPTED
    except (DemoError, LaunchError, ClientError, OSError) as error:
        return _fail(f"{error} (kept: {homes})")
    marble, exclusive = episodes
    print(f"\n{text_of(jobs_table(episodes))}\n\n{text_of(runs_table(jobset, marble, exclusive))}\n")
    _tell_verified(episodes)
    saved, printed = 100 * reduction(marble, exclusive), 100 * jobset.reduction
    print(f"marble needs {saved:.1f} % less time than fifo-exclusive; the paper prints {printed:.1f} % for this set.")
    if exclusive.memory.run and marble.memory.run is not None:
        more, printed = 100 * (marble.memory.run / exclusive.memory.run - 1), 100 * jobset.memory_gain
        print(f"It has {more:.1f} % more of the GPUs' memory in use, as assumed; the paper prints {printed:.0f} %.")
    for episode, comparison in played:
        print(truth_text(episode, comparison))
    print("Timelines, comparison and numbers:")
    for file in files:
        print(f"  {file}")
    if not all(episode.good for episode in episodes):
        return _fail(f"not every job is DONE and verified; logs and checkpoints are kept in {homes}")
    shutil.rmtree(homes, ignore_errors=True)
    if any(comparison.differences for _, comparison in played):
        return _fail(
            f"the simulator did not tell the truth about these runs, {TRIES} times: see the differences above, and try "
            "again on a machine that does less besides"
        )
    return 0


def _play_and_simulate(
    homes: Path, policy: str, jobset: JobSet, scale: float, profiles: Mapping[str, Profile]
) -> tuple[Episode, Comparison]:
    """The policy's run, and how the simulated one compares; played again where they differ, TRIES times in all."""
    for number in range(1, TRIES + 1):
        home = homes / (policy if number == 1 else f"{policy}-{number}")
        print(f"\n{policy}: a daemon of its own in {home}", flush=True)
        episode = play(home, policy, jobset, scale, profiles)
        print(f"{policy}: {episode.measures.makespan_s * scale:.0f} emulated s; everything is stopped", flush=True)
        comparison = simulate_again(jobset, episode, profiles)
        if not episode.good or not comparison.differences or number == TRIES:
            break
        print(truth_text(episode, comparison), flush=True)
        print(f"{policy} is played again: what else this machine does may have come between", flush=True)
    return episode, comparison


def _tell_verified(episodes: list[Episode]) -> None:
    for episode in episodes:
        for job in episode.measures.jobs:
            if job.resumes and episode.verified[job.id]:
                print(
                    f"{job.name} was suspended and resumed under {episode.policy}: its final weights are bit-identical "
                    "to those of a training that never was."
                )
    checked = sum(sum(episode.verified.values()) for episode in episodes)
    print(f"{checked} of {sum(len(episode.verified) for episode in episodes)} jobs are DONE with the right weights.")


def _fail(text: str) -> int:
    print(f"hpcdl: {' '.join(text.split())}", file=sys.stderr, flush=True)
    return 1


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP (unless nohup has it ignored) end the demo as Ctrl-C does, by way of its own cleaning up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with handled(numbers, interrupt):
        yield
