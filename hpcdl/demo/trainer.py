"""The demo's trainer: `python -m hpcdl.demo.trainer --model ResNet-50 --steps 900 --profile-file F --scale 16`.

It really trains (hpcdl/demo/network.py), checkpoints and resumes. Emulated is only how fast the GPUs are: each step is
paced to the rate that the model's profile gives for the number of GPUs it holds, and a start to the profile's start-up,
both `scale` times as fast as there. What a checkpoint and a restart take is real, and not paced.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import hpcdl.trainer as hpcdl
from hpcdl.config.profiles import read_profiles
from hpcdl.core.model.profile import Profile, find_profile
from hpcdl.trainer import checkpoints, emulated
from hpcdl.wire.private_files import atomic_write

FINAL = "final.json"
GPU_MEMORY_MIB = 11_000  # what a trainer seems to allocate of each emulated GPU
_LONGEST_SLEEP_S = 0.05  # so that a suspend is noticed soon however slow the steps are


def main(argv: list[str]) -> int:
    """Trains to the end (0), or until suspended (SystemExit)."""
    session = hpcdl.attach()  # before NumPy: from here on a suspend is noticed
    parser = _parser()
    given = parser.parse_args(argv)
    session = hpcdl.attach(checkpoint_dir=given.checkpoint_dir)
    if given.scale <= 0:
        parser.error("--scale must be positive")
    if session.checkpoint_dir is None:
        parser.error("--checkpoint-dir is needed outside hpcdl")
    profile = _profile(given)
    if profile is None:
        parser.error(f"{given.profile_file} has no profile {given.model}")
    nodes, gpus = granted(os.environ)
    rate = profile.rate(gpus, nodes)
    _say(
        f"{given.model} on {gpus} emulated GPUs: speed is emulated, {rate:g} steps/s and a start-up of "
        f"{profile.startup_s:g} s by its profile, both times {given.scale:g}; training and checkpoints are real"
    )
    if os.environ.get("HPCDL_EMULATED"):
        uuids = [uuid for uuid in os.environ.get("HPCDL_GPUS", "").split(",") if uuid]
        emulated.hold(os.environ["HPCDL_EMULATED"], uuids, _busy(profile, gpus, nodes), GPU_MEMORY_MIB)
    _one_thread()
    from hpcdl.demo.network import Network

    network = Network(given.model, given.seed)
    _await_start(profile.startup_s / given.scale)
    step_s = 1 / (rate * given.scale)
    began, first, loss = 0.0, 0, 0.0
    for step in hpcdl.steps(given.steps, save=network.save, load=network.load, every=given.every):
        if not began:
            began, first = time.monotonic(), step
            _say(f"trains from step {first}")
        loss = network.step()
        _sleep_until(began + (step + 1 - first) * step_s)
        if step + 1 == given.steps:
            # Before the last checkpoint, whose being durable ends the job.
            checkpoints.check_claim(session.checkpoint_dir, session.incarnation, session.tag)
            _write_final(session.checkpoint_dir, given.steps, network.digest())
    _say(f"done: {given.steps} steps, loss {loss:.4f}, weights {network.digest()[:16]}")
    return 0


def warm_up() -> None:
    """At the gate (`--warmup hpcdl.demo.trainer:warm_up`) the start-up is spent, as if none of it needed a GPU."""
    given, _ = _parser().parse_known_args(sys.argv[1:])
    profile = _profile(given)
    if profile is not None and given.scale > 0:
        _one_thread()
        from hpcdl.demo.network import Network

        Network(given.model, given.seed).step()
        _await_start(profile.startup_s / given.scale)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hpcdl.demo.trainer")
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--profile-file", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, help="steps between checkpoints; none if left out")
    parser.add_argument("--checkpoint-dir", type=Path, help="outside hpcdl")
    return parser


def _profile(given: argparse.Namespace) -> Profile | None:
    found = {each.name.casefold(): each for each in read_profiles(given.profile_file)}
    return find_profile(found, given.model)


def reference(model: str, steps: int, seed: int) -> str:
    """The digest of the weights after `steps` steps without interruption, trained here and now, not paced."""
    _one_thread()
    from hpcdl.demo.network import Network

    network = Network(model, seed)
    for _ in range(steps):
        network.step()
    return network.digest()


def trained(checkpoint_dir: Path, model: str, steps: int, seed: int) -> str | None:
    """The digest of the weights that a finished trainer left: of its last durable checkpoint, which must be of step
    `steps` and agree with what it said in final.json. None where it is not so."""
    _one_thread()
    from hpcdl.demo.network import Network

    found = checkpoints.complete(checkpoint_dir)
    if not found or found[0].step != steps:
        return None
    network = Network(model, seed)
    try:
        network.load(found[0].path)
        said = json.loads((checkpoint_dir / FINAL).read_text())
    except (OSError, ValueError, KeyError):
        return None
    return network.digest() if said == {"steps": steps, "sha256": network.digest()} else None


def granted(environ: Mapping[str, str]) -> tuple[int, int]:
    """(nodes, GPUs on this one) that were granted; one GPU outside hpcdl."""
    nodes = [name for name in environ.get("HPCDL_NODES", "").split(",") if name]
    gpus = [uuid for uuid in environ.get("HPCDL_GPUS", "").split(",") if uuid]
    return max(1, len(nodes)), len(gpus) or int(environ.get("HPCDL_GPU_COUNT") or 0) or 1


def _busy(profile: Profile, gpus: int, nodes: int) -> int:
    return round(100 * min(1.0, profile.efficiency(gpus, nodes)))


def _one_thread() -> None:
    """More threads would not be faster for so small a network, and could add up numbers in another order."""
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _age_s() -> float:
    """Seconds since this process was started, the interpreter's own start included."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _await_start(startup_s: float) -> None:
    """Until the process is as old as a start-up takes; no longer than until a suspend is requested."""
    _sleep_until(time.monotonic() + startup_s - _age_s())


def _sleep_until(due: float) -> None:
    """Due times lie on one schedule, so what a sleep is late does not add up."""
    while (left := due - time.monotonic()) > 0 and not hpcdl.should_suspend():
        time.sleep(min(left, _LONGEST_SLEEP_S))


def _write_final(directory: Path, steps: int, digest: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    atomic_write(directory / FINAL, json.dumps({"steps": steps, "sha256": digest}).encode())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
