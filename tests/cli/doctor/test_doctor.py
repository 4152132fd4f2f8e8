"""`hpcdl doctor`: with and without a daemon, a batch system and an allocation; the site files it writes."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent.folder import Mount, mount_of
from hpcdl.batch.adapter import SiteQueue, SiteReport
from hpcdl.batch.site import load_site, read_site
from hpcdl.cli.doctor import file_system, machine
from hpcdl.cli.doctor.machine import CheckState
from hpcdl.cli.doctor.site_file import site_text
from hpcdl.daemon.clock import WallClock
from hpcdl.slurm.report import limits_of
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon

SLURM = {
    "sinfo": 'case "$*" in *version*) echo "slurm 23.02.7";; *json*) echo "{\\"nodes\\": []}";; esac',
    "squeue": ":",
    "scontrol": """case "$*" in
*config*) echo "ClusterName             = alpha"; echo "PreemptMode             = REQUEUE"
          echo "PreemptType             = preempt/partition_prio"
          echo "AccountingStorageType   = accounting_storage/none";;
*partition*) on="PriorityTier=9 Nodes=n[1-8]"
             echo "PartitionName=gpu Default=YES State=UP MaxTime=1-00:00:00 MaxNodes=8 PreemptMode=OFF $on"
             on="Nodes=n[1-8]"
             echo "PartitionName=scavenge State=UP MaxTime=04:00:00 MaxNodes=2 PreemptMode=REQUEUE $on GraceTime=30"
             echo "PartitionName=admin State=DOWN MaxTime=UNLIMITED MaxNodes=UNLIMITED";;
esac""",
}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No batch system: a PATH that is ours alone; its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in list(os.environ):
        if name.startswith(("SLURM", "LSB_", "LSF_", "HPCDL_")) and name != "HPCDL_HOME":
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def slurm(outside: Path) -> Path:
    for name, script in SLURM.items():
        program = outside / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return outside


def by_name(value: Any) -> dict[str, Any]:
    return {check["name"]: check for check in value["checks"]}


def test_without_daemon_and_batch_system_it_says_what_there_is(outside: Path, hpcdl: Run) -> None:
    done = hpcdl("doctor", "--json")
    found = by_name(done.value)
    assert (done.code, done.value["ok"], done.value["batch"]) == (0, True, None)
    assert list(found) == [
        "python", "packages", "home", "file system", "gpus", "daemon", "clock", "settings", "sharing",
        "batch system",
    ]  # fmt: skip
    assert found["batch system"]["detail"].startswith("none: not on PATH (slurm: sinfo squeue; lsf: bjobs bsub lsid)")
    assert found["daemon"]["next"] == "hpcdl daemon start"
    assert all(set(check) == {"name", "state", "detail", "next"} for check in done.value["checks"])
    table = hpcdl("doctor").out
    assert "WARN  gpus" in table
    assert "-> hpcdl daemon start" in table
    assert hpcdl("doctor", "--quiet").out == ""


def test_with_a_daemon_of_another_version(outside: Path, fake: FakeDaemon, hpcdl: Run) -> None:
    check = by_name(hpcdl("doctor", "--json").value)["daemon"]
    assert check["state"] == "WARN"
    assert check["detail"] == "pid 4711 on h, up for 1 min 01 s, of hpcdl 0"
    fake.kill()
    check = by_name(hpcdl("doctor", "--json").value)["daemon"]
    assert (check["state"], check["next"]) == ("WARN", "hpcdl daemon start, or go on in the next allocation")


def test_a_folder_that_is_open_to_others_fails(outside: Path, home: Path, hpcdl: Run) -> None:
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    done = hpcdl("doctor", "--json")
    assert done.code == 1
    assert not done.value["ok"]
    assert by_name(done.value)["home"]["state"] == "FAIL"
    assert f"chmod 700 {home}" in by_name(done.value)["home"]["detail"]
    assert hpcdl("doctor", "--quiet").out == "home\n"


def test_wrong_settings_fail_and_the_rest_is_looked_at(outside: Path, home: Path, hpcdl: Run) -> None:
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("batch: pbs\n")
    found = by_name(hpcdl("doctor", "--json").value)
    assert found["settings"]["state"] == "FAIL"
    assert "config.yaml:1: batch: must be auto, slurm, lsf or none" in found["settings"]["detail"]
    assert "batch system" in found
    (home / "config.yaml").write_text("site: nowhere\n")
    assert by_name(hpcdl("doctor", "--json").value)["site"]["state"] == "FAIL"


@pytest.mark.parametrize(
    "mount, state, told",
    [
        (
            Mount("/home", "nfs4", frozenset({"rw", "hard"})),
            CheckState.OK,
            "only the daemon opens it, under a lease that needs no locks",
        ),
        (Mount("/home", "nfs4", frozenset({"rw", "soft"})), CheckState.WARN, "mounted soft"),
        (Mount("/home", "lustre"), CheckState.OK, "fine for the ledger (Lustre: fsync means what it says)"),
        (Mount("/home", "fuse.sshfs"), CheckState.WARN, "sshfs does not say when a write is durable"),
        (Mount("/dev/shm", "tmpfs"), CheckState.WARN, "lost when the machine boots"),
        (Mount("/", "ext4"), CheckState.OK, "this machine's alone"),
    ],
)
def test_what_a_file_system_means_for_the_ledger(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mount: Mount, state: CheckState, told: str
) -> None:
    monkeypatch.setattr(machine, "mount_of", lambda home: mount)
    monkeypatch.setattr(machine, "FREE_MIB", 0)
    found = machine.file_system(tmp_path)
    assert found.state is state
    assert told in found.detail
    assert list(tmp_path.iterdir()) == []


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,noatime shared:2 - nfs4 server:/home rw,vers=4.2,hard
31 22 0:41 / /scratch rw shared:3 - lustre 10.0.0.1@o2ib:/scratch rw,flock
32 22 0:42 / /gpfs rw shared:4 - gpfs gpfs rw
33 22 0:43 / /bee rw shared:5 - beegfs beegfs_nodev rw
34 22 0:44 / /mnt/my\\040laptop rw shared:6 - fuse.sshfs ada@laptop: rw
35 22 0:45 / /win rw shared:7 - cifs //server/share rw
36 22 0:46 / /old rw shared:8 - nfs server:/old rw,soft
37 22 0:47 / /odd rw shared:9 - fuse.newfs newfs rw
"""


@pytest.mark.parametrize(
    "folder, fine, told",
    [
        ("/var/lib/h", None, ""),
        ("/home/ada/.hpcdl", True, "is on nfs4 (/home): shared, and fine for the ledger (NFS"),
        ("/scratch/ada", True, "fine for the ledger (Lustre"),
        ("/gpfs/ada", True, "fine for the ledger (GPFS"),
        ("/bee/ada", True, "fine for the ledger (BeeGFS"),
        ("/mnt/my laptop/h", False, "is on fuse.sshfs (/mnt/my laptop): sshfs does not say when a write is durable"),
        ("/win/h", False, "its server may acknowledge a write before it is on a disk: submits that were acknowledged"),
        ("/old/h", False, "mounted soft: what was written may be lost when its server is slow: have it mounted hard"),
        ("/odd/h", False, "hpcdl does not know whether its fsync means what it says"),
    ],
)
def test_a_network_file_system_is_told_at_the_start(
    monkeypatch: pytest.MonkeyPatch, folder: str, fine: bool | None, told: str
) -> None:
    monkeypatch.setattr(file_system, "mount_of", lambda home: mount_of(home, MOUNTS))
    found = file_system.meaning_of(mount_of(Path(folder), MOUNTS))
    assert (None if found is None else found.fine) is fine
    line = file_system.told_at_start(Path(folder))
    assert told in line
    assert "\n" not in line
    assert ("set HPCDL_HOME" in line) is (fine is False)


def test_a_file_system_without_hard_links_cannot_hold_a_lease(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert machine.file_system(tmp_path).state is CheckState.FAIL
    assert list(tmp_path.iterdir()) == []


def test_the_options_of_a_mount_are_read() -> None:
    mounts = "36 35 0:32 / /home rw,noatime shared:1 - nfs4 server:/x rw,vers=4.2,soft,timeo=600\n"
    found = mount_of(Path("/home/ada"), mounts)
    assert (found.point, found.kind, found.shared) == ("/home", "nfs4", True)
    assert {"soft", "noatime"} <= found.options


def test_a_skewed_file_server_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Ahead(WallClock):
        def now(self) -> float:
            return super().now() + 100.0

    monkeypatch.setattr(machine, "WallClock", Ahead)
    found = machine.clock(tmp_path)
    assert found.state is CheckState.WARN
    assert found.detail == "the file server's clock is 1 min 40 s behind"


# --- the batch system -------------------------------------------------------------------------------------------------


def test_a_batch_system_is_told_with_what_it_lacks(slurm: Path, hpcdl: Run) -> None:
    done = hpcdl("doctor", "--json")
    assert done.code == 0
    batch, found = done.value["batch"], by_name(done.value)
    assert (batch["kind"], batch["version"], batch["json"], batch["answers"]) == ("slurm", "23.02.7", True, True)
    assert batch["queues"] == ["gpu", "scavenge", "admin"]
    assert batch["preemption"] == "REQUEUE (partition_prio)"
    assert batch["commands"]["sinfo"] is True
    assert batch["commands"]["sacct"] is False
    assert batch["allocation"] is None
    assert any("no accounting" in line for line in batch["missing"])
    assert "sbatch" in found["batch commands"]["detail"].partition("not there: ")[2]
    assert "scavenge (" in found["queues"]["detail"]
    assert found["allocation"]["detail"] == "this process is in none"
    assert found["pilots"]["detail"] == "none is submitted: the setting pilots is 0"


def test_a_batch_system_that_does_not_answer_fails_only_where_it_is_needed(
    slurm: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slurm / "sinfo").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    done = hpcdl("doctor", "--json")
    assert (done.code, by_name(done.value)["batch system"]["state"]) == (0, "WARN")
    assert done.value["batch"]["answers"] is False
    monkeypatch.setenv("HPCDL_PILOTS", "2")
    done = hpcdl("doctor", "--json")
    assert (done.code, by_name(done.value)["batch system"]["state"]) == (1, "FAIL")
    assert "Unable to contact slurm controller" in by_name(done.value)["batch system"]["detail"]


def test_slurm_that_is_not_configured_is_told_in_a_line(slurm: Path, hpcdl: Run) -> None:
    words = "fetch_config: DNS SRV lookup failed\\nsinfo: fatal: Could not establish a configuration source"
    for name in ("sinfo", "scontrol"):
        (slurm / name).write_text(f"#!/bin/sh\nprintf '{name}: error: {words}\\n' >&2\nexit 1\n")
    what, step = (
        "Slurm is installed on this machine, but not configured",
        "on a node of the cluster, where its commands",
    )
    for argv, name in ((("holes",), "sinfo"), (("doctor", "--site"), "scontrol")):
        done = hpcdl(*argv)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert f"slurm does not answer ({name}: {what}): run this {step}" in done.err
    check = by_name(hpcdl("doctor", "--json").value)["batch system"]
    assert what in check["detail"]
    assert step in check["next"]


def test_half_an_allocation_is_told(slurm: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    done = hpcdl("doctor", "--json")
    check = by_name(done.value)["allocation"]
    assert (done.code, check["state"]) == (1, "FAIL")
    assert "SLURM_JOB_NODELIST" in check["detail"]


def test_the_site_of_another_batch_system_fails(slurm: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCDL_SITE", "summit")
    monkeypatch.setenv("HPCDL_PILOTS", "2")
    check = by_name(hpcdl("doctor", "--json").value)["pilots"]
    assert check["state"] == "FAIL"
    assert "for lsf, and the batch system here is slurm" in check["detail"]


# --- --site -----------------------------------------------------------------------------------------------------------


def test_a_site_file_is_written_and_can_be_used_as_it_is(slurm: Path, home: Path, hpcdl: Run) -> None:
    done = hpcdl("doctor", "--site")
    path = home / "sites" / "alpha.yaml"
    assert done.code == 0
    assert f"wrote {path}" in done.out
    site = load_site("alpha", 3, home)
    assert (site.kind, site.site.pilots_max) == ("slurm", 3)
    assert (site.site.queues, site.site.pilots_without_preemption) == ((), False)
    assert (site.site.walltime_max_s, site.site.nodes_max) == (86_400.0, 8)
    text = path.read_text()
    assert "#   admin: not for your batch jobs" in text
    assert "#   scavenge: preemptable" in text
    assert "#   gpu: its PreemptMode is OFF" in text
    assert '# For instance: queues: ["scavenge"]' in text
    assert "grace period 30 s" in text
    again = hpcdl("doctor", "--site")
    assert (again.code, again.err) == (
        1,
        f"hpcdl: {path} is there already: move it away, or name another with --output\n",
    )
    assert hpcdl("doctor", "--site", "beta", "--json").value["site"]["file"] == str(home / "sites" / "beta.yaml")


def test_a_site_file_elsewhere_and_on_the_terminal(slurm: Path, hpcdl: Run, tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    assert hpcdl("doctor", "--site", "--output", target, "--quiet").out == f"{target}\n"
    assert hpcdl("doctor", "--site", "--output", "-").out == target.read_text()
    assert read_site(target).kind == "slurm"


def test_wrong_usage_of_site(outside: Path, hpcdl: Run) -> None:
    assert "no batch system was found here" in hpcdl("doctor", "--site").err
    done = hpcdl("doctor", "--output", "x")
    assert (done.code, "--output is where --site writes" in done.err) == (2, True)


def test_a_name_that_leads_elsewhere_is_refused(slurm: Path, hpcdl: Run, tmp_path: Path) -> None:
    done = hpcdl("doctor", "--site", "../x")
    assert (done.code, "no site's name" in done.err) == (1, True)
    assert not (tmp_path / "x.yaml").exists()


def test_limits_of_users_from_accounting() -> None:
    associations = "chem|||normal,long\nphys|20|5|normal\n"
    qos = "normal|50|10|2-00:00:00\nlong|4||\nother|900||\n"
    most, notes = limits_of(associations, qos)
    assert most == 50
    assert notes == (
        "account phys: 20 batch jobs, 5 running",
        "QOS normal: 50 batch jobs, 10 running, walltime 2-00:00:00",
        "QOS long: 4 batch jobs, all running, walltime any",
    )
    assert limits_of("", "") == (None, ())


def test_a_site_of_short_queues(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(site_text(SiteReport("lsf", "10.1", "beta", (SiteQueue("debug", True, 300.0),), 2, ("told so",))))
    site = read_site(path).site
    assert (site.walltime_min_s, site.walltime_max_s, site.pilots_max) == (300.0, 300.0, 2)
    assert site.queues == ()


def test_a_folder_for_checkpoints_on_the_node(outside: Path, home: Path, tmp_path: Path, hpcdl: Run) -> None:
    home.mkdir(mode=0o700)
    config = home / "config.yaml"
    for folder, state, told in (
        (tmp_path, "OK", " MiB free"),
        (tmp_path / "none", "WARN", "no folder here that you may write in"),
        ("$NO_SUCH_VARIABLE", "WARN", "$NO_SUCH_VARIABLE is no folder here"),
    ):
        config.write_text(f"local_checkpoints: {folder}\n")
        config.chmod(0o600)
        found = by_name(hpcdl("doctor", "--json").value)["local_checkpoints"]
        assert found["state"] == state
        assert told in found["detail"]


def test_what_of_sharing_ran_on_no_gpu(home: Path, tmp_path: Path, hpcdl: Run) -> None:
    home.mkdir(mode=0o700)
    config = home / "config.yaml"
    os.mkfifo(tmp_path / "control")
    for settings, state, words in (
        ("sharing: off\n", "OK", "off, without MPS; MPS, stream priorities"),
        (f"sharing: on\nmps_pipe_directory: {tmp_path}\n", "OK", f"on; an MPS server listens in {tmp_path}; "),
        (f"mps_pipe_directory: {tmp_path}/none\n", "WARN", "no MPS server listens"),
    ):
        config.write_text(settings)
        config.chmod(0o600)
        found = by_name(hpcdl("doctor", "--json").value)["sharing"]
        assert found["state"] == state
        assert words in found["detail"]
        assert "not yet run on a GPU" in found["detail"]
