"""An array and a file of jobs for real: odd words reach the jobs, the cap holds, what failed is retried."""

import json
import sys
from pathlib import Path

import pytest

from tests.system.cluster import Cluster

SHOW = """\
import json, os, pathlib, sys
told = {key: value for key, value in os.environ.items() if key.startswith(("HPCDL_ARRAY", "HPCDL_SWEEP"))}
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["ODD"], told]))
if "--fails" in sys.argv and not pathlib.Path("good").exists():
    sys.exit(3)
"""


@pytest.fixture
def cluster(kept_cluster: Cluster) -> Cluster:
    return kept_cluster


def test_odd_words_a_cap_and_a_retry(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "we ird\n\u00e9"
    folder.mkdir()
    (folder / "show.py").write_text(SHOW)
    odd = 'it\'s "x"\n\u4f60 \udcff'
    answer = cluster.cli(
        "submit", "--json", "--cwd", str(folder), "--env", f"ODD={odd}", "--array", "4,7", "--sweep", f"s=a b,{odd}",
        "--max-parallel", "1", "--", sys.executable, "show.py", "--fails", "{index}", "{{s}}", odd,
    )  # fmt: skip
    jobs = [row["id"] for row in answer["jobs"]]
    assert len(jobs) == 4
    ids = [str(job) for job in jobs]
    cluster.cli("wait", *ids, code=3)
    told = [json.loads(cluster.cli("logs", job)) for job in ids]
    assert [words for words, _, _, _ in told] == [
        ["--fails", str(index), "{s}", odd, "--s", value] for value in ("a b", odd) for index in (4, 7)
    ]
    assert {(where, env) for _, where, env, _ in told} == {(str(folder), odd)}
    assert told[3][3] == {"HPCDL_ARRAY_JOB": ids[0], "HPCDL_ARRAY_INDEX": "7", "HPCDL_SWEEP_S": odd}
    begun = [event for event in cluster.events() if event["kind"] in ("StartRequested", "IncarnationEnded")]
    ours = [event["kind"] for event in begun if event["body"]["job"] in jobs]
    assert ours == ["StartRequested", "IncarnationEnded"] * 4  # never two at a time
    (folder / "good").touch()
    again = cluster.cli("retry", "--failed", "--array", ids[0], "--json")
    assert [row["id"] for row in again["jobs"]] == jobs
    cluster.cli("wait", *ids)
    rows = [cluster.job(job) for job in jobs]
    assert {(row["state"], row["failures"]) for row in rows} == {("DONE", 1)}, "a retry forgets no failure"


def test_a_command_that_is_not_there_is_not_tried_again(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "- {name: gone, command: nosuchprogram, retries: 5}\n- {name: after, command: 'true', after: gone}\n"
    )
    gone, after = (int(number) for number in cluster.cli("submit", "--quiet", "--file", str(file)).split())
    cluster.cli("wait", str(gone), str(after), code=127)
    row = cluster.job(gone)
    assert (row["state"], row["failures"], row["exit_code"]) == ("FAILED", 1, 127)
    assert cluster.job(after)["state"] == "CANCELLED"
