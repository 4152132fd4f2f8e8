"""What real programs do: output that is not text, a million lines, names with spaces, quotes and newlines."""

import json
import sys
from pathlib import Path

from tests.system.cluster import Cluster

ODD = "a b\n'c' \"d\" $HOME `x` \u00e9\u2603\U0001f680 \\"

PROGRAM = """
import json, os, sys
out = sys.stdout.buffer
out.write(b"\\xff\\xfe\\x00\\x1b[31m is no text\\n")
out.write(b"a line of output\\n" * 1_000_000)
told = {"env": os.environ["ODD"], "cwd": os.getcwd(), "argv": sys.argv[1:]}
out.write(json.dumps(told).encode() + b"\\n")
"""


def test_odd_names_and_a_million_lines(kept_cluster: Cluster, tmp_path: Path) -> None:
    cluster = kept_cluster
    folder = tmp_path / ODD.replace("/", "_")
    folder.mkdir()
    spec = {
        "command": [sys.executable, "-c", PROGRAM, ODD, ""],
        "name": "\u2603 job 'with' \"quotes\"",
        "cwd": str(folder),
        "env": [["ODD", ODD], ["LANG", "C"]],
        "checkpoint_dir": str(folder / "check\npoints"),
    }
    (row,) = cluster.client.request("POST", "/v1/jobs", {"request_id": "odd", "jobs": [spec]})["jobs"]
    job = row["id"]
    cluster.until_done(job)
    said = json.loads(cluster.cli("logs", str(job), "-n", "1"))
    assert said == {"env": ODD, "cwd": str(folder), "argv": [ODD, ""]}
    log = Path(cluster.cli("logs", str(job), "--quiet").strip())
    content = log.read_bytes()
    assert content.startswith(b"\xff\xfe\x00\x1b[31m is no text\n")
    assert content.count(b"\n") == 1_000_002
    shown = cluster.cli("show", str(job))
    assert "\u2603 job 'with' \"quotes\"" in shown
    assert "\n'c'" not in shown, "a newline in a path must not break the lines"
    assert cluster.cli("show", str(job), "--json")["job"]["spec"]["cwd"] == str(folder)


def test_a_program_that_is_not_there(kept_cluster: Cluster) -> None:
    cluster = kept_cluster
    spec = {"command": ["no such program", "x"], "name": "j", "retries": 3, "env": [["PATH", "/bin"]]}
    (row,) = cluster.client.request("POST", "/v1/jobs", {"request_id": "absent", "jobs": [spec]})["jobs"]
    cluster.until_state(row["id"], "FAILED")
    ended = cluster.job(row["id"])
    assert (ended["cause"], ended["incarnation"]) == ("user error", 1)
