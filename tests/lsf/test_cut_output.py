"""Output that is cut off, as by a full disk or a killed command: parsers give what is there, and never break."""

import contextlib
from pathlib import Path

import pytest

from hpcdl.core.model.pilot import BatchState
from hpcdl.lsf.cluster import parse_bhosts, parse_bqueues, parse_bqueues_long, parse_gpus, parse_lshosts
from hpcdl.lsf.holes import parse_bslots
from hpcdl.lsf.jobs import Form, jobstat_text, parse_bhist, parse_bjobs

RECORDINGS = sorted((Path(__file__).parents[1] / "recordings" / "lsf").glob("*.txt"))
NOW = 1769033955.0
CUTS = 25


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_that_is_cut_off_anywhere(path: Path) -> None:
    whole = path.read_text()
    known = set(parse_bhist(whole, NOW))
    for form in Form:
        with contextlib.suppress(ValueError):  # of another form, or of fewer fields
            known |= set(parse_bjobs(form, whole, NOW) or {})
    for cut in range(CUTS):
        text = whole[: len(whole) * cut // CUTS]
        for form in Form:
            with contextlib.suppress(ValueError):
                for job, told in (parse_bjobs(form, text, NOW) or {}).items():
                    assert job in known
                    assert told.job.state in BatchState
        assert set(parse_bhist(text, NOW)) <= known
        for parse in (parse_gpus, parse_lshosts, parse_bqueues):
            assert len(parse(text)) <= text.count("\n") + 1
        for strict in (parse_bhosts, parse_bqueues_long, parse_bslots, jobstat_text):
            with contextlib.suppress(ValueError):  # nothing else
                strict(text)
