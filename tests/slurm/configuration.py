"""The files of a private Slurm cluster of four nodes on one machine, as text: no root, no cgroups, no database."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NODES = ("n1", "n2", "n3", "n4")
PREEMPTED = {"scavenge": ("REQUEUE", True), "cancelp": ("CANCEL", True), "nograce": ("CANCEL", False)}


@dataclass(frozen=True, slots=True)
class Options:
    """What a test may want otherwise. Times are whole seconds.

    `gpus`: on each node. `grace_s`: GraceTime of the partitions `scavenge` and `cancelp`. `kill_wait_s`: from SIGTERM
    to SIGKILL. `slurmd_timeout_s`: without a word from its slurmd for longer, a node is down. `user_signal`: a
    preemption sends what --signal asks for (preempt_send_user_signal). `cgroups`: the end of a step ends all that it
    started, as on real clusters; else what is in a session of its own stays. `more`: lines of slurm.conf.
    """

    gpus: int = 4
    grace_s: int = 600
    kill_wait_s: int = 5
    slurmd_timeout_s: int = 30
    user_signal: bool = False
    cgroups: bool = False
    more: Mapping[str, str] = field(default_factory=dict)


def slurm_conf(options: Options, folder: Path, host: str, user: str, ports: tuple[int, ...]) -> str:
    """slurm.conf; `ports`: slurmctld's, then one a node."""
    lines = {
        "ClusterName": "hpcdltest",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={folder}/munge/sock",
        "SlurmctldPort": str(ports[0]),
        "SlurmctldPidFile": f"{folder}/run/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/run/slurmd.%n.pid",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/slurmd.%n.log",
        "SlurmctldDebug": "info",
        "SlurmdDebug": "info",
        "PlugStackConfig": f"{folder}/etc/plugstack.conf",
        "MailProg": "/bin/true",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "ProctrackType": "proctrack/cgroup" if options.cgroups else "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": f"{folder}/log/jobcomp.log",
        "ReturnToService": "2",
        "SlurmdParameters": "config_overrides",  # more CPUs than there are
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "GresTypes": "gpu",
        "Licenses": "sim:2",
        "TopologyPlugin": "topology/tree",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=2,bf_resolution=60,bf_window=1440,bf_max_job_test=200,"
        "sched_interval=2,sched_min_interval=0,batch_sched_delay=0",
        "PriorityType": "priority/basic",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "KillWait": str(options.kill_wait_s),
        "InactiveLimit": "0",
        "MinJobAge": "300",
        "CompleteWait": "0",
        "SlurmctldTimeout": "30",
        "SlurmdTimeout": str(options.slurmd_timeout_s),
        "MessageTimeout": "10",
        "TCPTimeout": "2",
        "EpilogMsgTime": "0",
        "RebootProgram": "/bin/true",
    }
    if options.user_signal:
        lines["SlurmctldParameters"] = "preempt_send_user_signal"
    lines.update(options.more)
    text = [f"{key}={value}" for key, value in lines.items()]
    text.append(
        "NodeName=DEFAULT CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=16000 "
        f"{f'Gres=gpu:{options.gpus} ' if options.gpus else ''}State=UNKNOWN"
    )
    text += [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
        for node, port in zip(NODES, ports[1:], strict=True)
    ]
    limits = "MaxTime=UNLIMITED DefaultTime=00:10:00 DefMemPerCPU=100"
    text.append(f"PartitionName=DEFAULT Nodes=n[1-4] State=UP OverSubscribe=NO {limits}")
    text.append("PartitionName=normal Default=YES PriorityTier=100 PreemptMode=OFF")
    text += [
        f"PartitionName={name} PriorityTier=1 PreemptMode={mode} GraceTime={options.grace_s if grace else 0}"
        for name, (mode, grace) in PREEMPTED.items()
    ]
    return "\n".join(text) + "\n"


def write(options: Options, folder: Path, host: str, user: str, ports: tuple[int, ...], key: bytes) -> None:
    """Fills an empty folder: etc/, munge/ with its `key`, and one device file a GPU."""
    for name in ("etc", "state", "log", "run", "dev", "munge", "jobs", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(
            mode=0o755, parents=True
        )  # munged refuses a folder that a group may write, as umask 002 has it
    for gpu in range(options.gpus):  # slurmd wants character devices, and takes a link to one
        (folder / "dev" / f"gpu{gpu}").symlink_to("/dev/null")
    (folder / "munge" / "key").touch(0o600)
    (folder / "munge" / "key").write_bytes(key)
    etc = folder / "etc"
    (etc / "slurm.conf").write_text(slurm_conf(options, folder, host, user, ports))
    devices = f"{folder}/dev/gpu[0-{options.gpus - 1}]"
    gres = [f"NodeName={node} Name=gpu File={devices}" for node in NODES] if options.gpus else []
    (etc / "gres.conf").write_text("\n".join([*gres, ""]))
    switches = ["SwitchName=leaf1 Nodes=n[1-2]", "SwitchName=leaf2 Nodes=n[3-4]", "SwitchName=top Switches=leaf[1-2]"]
    (etc / "topology.conf").write_text("\n".join([*switches, ""]))
    (etc / "plugstack.conf").write_text("")
    (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
