"""`hpcdl simulate backfill`: the file that it writes, and its errors."""

import gzip
from pathlib import Path

from tests.cli.conftest import Run


def test_a_trace_is_written_and_read(hpcdl: Run, tmp_path: Path) -> None:
    packed, plain = tmp_path / "idle.csv.gz", tmp_path / "idle.csv"
    few = ("--nodes", 30, "--hours", 20, "--seed", 4)
    value = hpcdl("simulate", "backfill", "-o", packed, *few, "--json").value
    assert (value["file"], value["nodes"], value["hours"], value["seed"]) == (str(packed), 30, 20, 4)
    done = hpcdl("simulate", "backfill", "-o", plain, *few)
    assert done.out.splitlines()[0].startswith("Simulated: 30 nodes, 20 h, seed 4; ")
    assert done.out.splitlines()[1] == f"wrote {plain}, {value['pieces']} rows"
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    table = hpcdl("holes", "--stats", packed, "--json").value
    assert table["pieces"] == value["pieces"]
    assert round(table["idle_node_hours"], 6) == round(value["idle_node_hours"], 6)
    assert hpcdl("simulate", "backfill", "-o", plain, *few, "--quiet").out == f"{plain}\n"


def test_what_makes_no_sense_is_one_line(hpcdl: Run, tmp_path: Path) -> None:
    assert hpcdl("simulate", "backfill").code == 2
    done = hpcdl("simulate", "backfill", "-o", tmp_path / "no" / "idle.csv")
    assert (done.code, "there is no folder" in done.err) == (1, True)
    for argv in (("--nodes", 0), ("--hours", 0.5), ("--load", 0), ("--load", "nan")):
        done = hpcdl("simulate", "backfill", "-o", tmp_path / "idle.csv", *argv)
        assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert not (tmp_path / "idle.csv").exists()
