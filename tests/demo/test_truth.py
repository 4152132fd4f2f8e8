"""The simulator beside real processes: three short jobs on a real daemon, and the same again simulated."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.demo.compare import simulate_again, truth_text
from hpcdl.demo.episode import JobSet, SetJob, play
from hpcdl.sim.validation import TOLERANCE, Comparison

SCALE = 40.0
"""The jobs take 5 to 25 s of this machine's time, far enough apart that no order depends on how loaded it is."""

JOBS = (("ResNet-50", 900), ("Inception-v3", 1500), ("VGG-16", 400))
TRIES = 3
"""On a loaded machine a pause of a second may come between; what the simulator does wrong, it does every time."""


def tell(found: Sequence[str]) -> str:
    return "\n\n".join(found)


# The launcher leaves its daemon to itself, as it must; `play` stops it by its lease.
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_three_real_jobs_and_the_same_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    profiles = load_profiles([conf_folder() / "profiles"])
    jobset = JobSet(0, 6, tuple(SetJob(model, steps, model) for model, steps in JOBS), 700.0, 500.0, 0.3, 0.4)
    told: list[str] = []
    found: Comparison | None = None
    for number in range(TRIES):
        episode = play(tmp_path / f"home{number}", "marble", jobset, SCALE, profiles)
        assert episode.good
        found = simulate_again(jobset, episode, profiles)
        told.append(truth_text(episode, found))
        if not found.differences and abs(found.error) <= TOLERANCE:
            break
    assert found is not None
    assert found.differences == (), tell(told)
    assert abs(found.error) <= TOLERANCE
    kinds = [each.kind for each in found.real]
    assert kinds.count("start") == kinds.count("end") == len(JOBS)
    assert sorted(each.what for each in found.real) == sorted(each.what for each in found.simulated)
