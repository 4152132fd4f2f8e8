"""bhosts, bqueues, lshosts, lsid."""

from collections.abc import Mapping, Sequence

from tests.lsf.emulator.options import Options, Refused, parse
from tests.lsf.emulator.records import STARTED, Config, Host, Job, Queue, State
from tests.lsf.emulator.store import Store
from tests.lsf.emulator.text import as_json, format_of, table


def lsid(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    config = store.config()
    if config.openlava:
        print("openlava project 2.2, Sep 17 2018\n")
    elif "V" in "".join(argv):
        print("IBM Spectrum LSF 10.1.0.15, May 13 2025")
        return 0
    else:
        print(
            "IBM Spectrum LSF Community Edition 10.1.0.15, May 13 2025\n"
            "Copyright IBM Corp. 1992, 2016. All rights reserved.\n"
            "US Government Users Restricted Rights - Use, duplication or disclosure restricted by GSA ADP Schedule"
            " Contract with IBM Corp.\n"
        )
    print(f"My cluster name is {config.name}\nMy master name is {config.hosts[0].name}")
    return 0


def _options(config: Config, argv: list[str], command: str, *more: str) -> Options:
    lacks = ("noheader", "json", "o") if config.openlava else ()
    return parse(argv, ("w", "l", "noheader", "json", *more), ("o", "u", "m", "R"), command=command, without=lacks)


# --- bhosts


def bhosts(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    config, state = store.config(), store.read()
    given = _options(config, argv, "bhosts", "gpu", "a")
    hosts = _hosts(config, given)
    if given.has("gpu"):
        return _gpus(state, hosts)
    rows = [_host_row(state, host, wide=given.has("w") or given.has("l") or given.has("o")) for host in hosts]
    if given.has("o") or given.has("json"):
        return _formatted("bhosts", "HOSTS", given, rows)
    if given.has("l"):
        for row in rows:
            _host_long(row)
        return 0
    print("HOST_NAME          STATUS       JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV ")
    for row in rows:
        counts = "".join(f"{row[name]:>7}" for name in ("MAX", "NJOBS", "RUN", "SSUSP", "USUSP", "RSV"))
        width = max(18, len(row["HOST_NAME"])) if given.has("w") else 18
        print(f"{row['HOST_NAME'][:width]:{width}} {row['STATUS']:14} -{counts}")
    return 0


def _hosts(config: Config, given: Options) -> list[Host]:
    for name in given.rest:
        if name != "all" and config.host(name) is None:
            raise Refused(f"{name}: Bad host name, host group name or cluster name.")
    return [host for host in config.hosts if not given.rest or host.name in given.rest or "all" in given.rest]


def _host_row(state: State, host: Host, *, wide: bool) -> Mapping[str, str]:
    counts = {"RUN": 0, "SSUSP": 0, "USUSP": 0}
    gpus = 0
    for job in state.jobs:
        if job.status in counts:
            here = sum(slots for name, slots in job.hosts if name == host.name)
            whole = bool(here) and (job.exclusive or job.nodes > 0) and job.status != "SSUSP"
            counts[job.status] += host.slots if whole and here > 1 else here
            gpus += sum(len(ids) for name, ids in job.gpu_ids if name == host.name)
    used = counts["RUN"] + counts["USUSP"]
    if host.name in state.closed:
        status = "closed_Adm" if wide else "closed"
    elif used >= host.slots:
        status = "closed_Full" if wide else "closed"
    else:
        status = "ok"
    free = host.gpus - gpus
    return {
        "HOST_NAME": host.name,
        "STATUS": status,
        "JL_U": "-",
        "MAX": str(host.slots),
        "NJOBS": str(sum(counts.values())),
        **{name: str(count) for name, count in counts.items()},
        "RSV": "0",
        "NGPUS": str(host.gpus) if host.gpus else "-",
        "NGPUS_ALLOC": str(gpus) if host.gpus else "-",
        "NGPUS_EXCL_ALLOC": str(gpus) if host.gpus else "-",
        "NGPUS_SHARED_ALLOC": "0" if host.gpus else "-",
        "NGPUS_SHARED_JEXCL_ALLOC": "0" if host.gpus else "-",
        "NGPUS_EXCL_AVAIL": str(free) if host.gpus else "-",
        "NGPUS_SHARED_AVAIL": str(free) if host.gpus else "-",
    }


def _host_long(row: Mapping[str, str]) -> None:
    print(f"HOST  {row['HOST_NAME']}")
    print("STATUS           CPUF  JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV DISPATCH_WINDOW")
    counts = "".join(f"{row[name]:>7}" for name in ("MAX", "NJOBS", "RUN", "SSUSP", "USUSP", "RSV"))
    print(f"{row['STATUS']:15} 12.50     -{counts}      -\n")


def _gpus(state: State, hosts: Sequence[Host]) -> int:
    print("HOST_NAME              ID           MODEL     MUSED      MRSV  NJOBS    RUN   SUSP    RSV ")
    for host in hosts:
        for index in range(host.gpus):
            name = host.name if index == 0 else ""
            on = [job for job in state.jobs if job.status in STARTED and (host.name, index) in _pairs(job)]
            run = sum(job.status == "RUN" for job in on)
            counts = f"{len(on):>7}{run:>7}{len(on) - run:>7}      0"
            print(f"{name:20}{index:>5}   {host.model[:14]:14}      0M        0M{counts}")
    return 0


def _pairs(job: Job) -> set[tuple[str, int]]:
    return {(name, index) for name, ids in job.gpu_ids for index in ids}


def _formatted(command: str, count_name: str, given: Options, rows: Sequence[Mapping[str, str]]) -> int:
    if not given.has("o"):
        raise Refused(f"{command}: You cannot use the -json option when the -o option is not specified.")
    fields, delimiter = format_of(given.get("o"))
    names = [name.upper() for name, _ in fields]
    for name in names:
        if rows and name not in rows[0]:
            raise Refused(f"{command}: {name.lower()} is not a valid output field.")
    if given.has("json"):
        print(as_json(command, count_name, [{name: row[name] for name in names} for row in rows]), end="")
        return 0
    widths = [width or 18 for _, width in fields]
    cells = [[row[name] for name in names] for row in rows]
    print(table(names, cells, widths, delimiter, header=not given.has("noheader")), end="")
    return 0


# --- bqueues


def bqueues(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    config, state = store.config(), store.read()
    given = _options(config, argv, "bqueues")
    for name in given.rest:
        if config.queue(name) is None:
            raise Refused(f"{name}: No such queue")
    queues = [queue for queue in config.queues if not given.rest or queue.name in given.rest]
    queues.sort(key=lambda queue: -queue.priority)
    rows = [_queue_row(state, queue) for queue in queues]
    if given.has("o") or given.has("json"):
        return _formatted("bqueues", "QUEUES", given, rows)
    if given.has("l"):
        print("\n".join(_queue_long(config, queue, row) for queue, row in zip(queues, rows, strict=True)))
        return 0
    print("QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP ")
    for row in rows:
        counts = "".join(f"{row[name]:>6}" for name in ("NJOBS", "PEND", "RUN", "SUSP"))
        print(f"{row['QUEUE_NAME']:14} {row['PRIORITY']:>4}  {row['STATUS']:15} -    -    -    -{counts}")
    return 0


def _queue_row(state: State, queue: Queue) -> Mapping[str, str]:
    jobs = [job for job in state.jobs if job.queue == queue.name]

    def count(*statuses: str) -> str:
        return str(sum(_size(job) for job in jobs if job.status in statuses))

    return {
        "QUEUE_NAME": queue.name,
        "PRIORITY": str(queue.priority),
        "STATUS": f"{'Open' if queue.open else 'Closed'}:{'Active' if queue.active else 'Inact'}",
        **dict.fromkeys(("MAX", "JL_U", "JL_P", "JL_H"), "-"),
        "NJOBS": count("PEND", "PSUSP", *STARTED),
        "PEND": count("PEND", "PSUSP"),
        "RUN": count("RUN"),
        "SUSP": count("USUSP", "SSUSP"),
        "SSUSP": count("SSUSP"),
        "USUSP": count("USUSP"),
        "RSV": "0",
        "DESCRIPTION": queue.description,
        "RUNLIMIT": f"{queue.limit_s / 60:.1f}" if queue.limit_s else "-",
        "PREEMPTION": _preemption(queue) or "-",
    }


def _size(job: Job) -> int:
    return sum(slots for _, slots in job.hosts) or job.slots


def _preemption(queue: Queue) -> str:
    return f"PREEMPTIVE[{' '.join(queue.preempts)}]" if queue.preempts else ""


def _queue_long(config: Config, queue: Queue, row: Mapping[str, str]) -> str:
    """Without a row for what is not configured, as bqueues leaves those out."""
    counts = "".join(f"{row[name]:>6}" for name in ("NJOBS", "PEND", "RUN", "SSUSP", "USUSP")) + f"{row['RSV']:>5}"
    preemptable = [other.name for other in config.queues if queue.name in other.preempts]
    policies = []
    if queue.backfill:
        policies.append("BACKFILL")
    if queue.interruptible_s:
        policies.append("INTERRUPTIBLE_BACKFILL")
    if queue.preempts:
        policies.append("PREEMPTIVE")
    if preemptable:
        policies.append("PREEMPTABLE")
    lines = [
        f"QUEUE: {queue.name}",
        f"  -- {queue.description}" + ("  This is the default queue." if queue.name == config.default_queue else ""),
        "",
        "PARAMETERS/STATISTICS",
        "PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV ",
        f"{queue.priority:3}    0  {row['STATUS']:15} -    -    -    -{counts}",
        "Interval for a host to accept two jobs is 0 seconds",
        "",
    ]
    if queue.limit_s:
        lines += [" RUNLIMIT                ", f" {queue.limit_s / 60:.1f} min of {config.hosts[0].name}", ""]
    lines += [
        "SCHEDULING PARAMETERS",
        "           r15s   r1m  r15m   ut      pg    io   ls    it    tmp    swp    mem",
        " loadSched   -     -     -     -       -     -    -     -     -      -      -  ",
        " loadStop    -     -     -     -       -     -    -     -     -      -      -  ",
        "",
    ]
    if policies:
        lines += ["SCHEDULING POLICIES:  " + "  ".join(policies)]
    if queue.interruptible_s:
        lines += [f"INTERRUPTIBLE_BACKFILL:  {int(queue.interruptible_s)} seconds"]
    if policies:
        lines += [""]
    lines += ["USERS: all", "HOSTS:  all"]
    if preemptable:
        lines += [f"PREEMPTION = PREEMPTABLE[{' '.join(preemptable)}]"]
    elif queue.preempts:
        lines += [f"PREEMPTION = {_preemption(queue)}"]
    if queue.requeue_values:
        lines += [f"REQUEUE_EXIT_VALUES:  {' '.join(str(value) for value in queue.requeue_values)}"]
    if queue.rerunnable:
        lines += ["RERUNNABLE : yes"]
    if queue.action == "requeue" and preemptable:
        lines += ["TERMINATE_WHEN:  PREEMPT"]
    return "\n".join(lines) + "\n"


# --- lshosts


def lshosts(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    config = store.config()
    given = _options(config, argv, "lshosts", "gpu", "T")
    hosts = _hosts(config, given)
    if given.has("gpu"):
        print("HOST_NAME   gpu_id       gpu_model   gpu_driver   gpu_factor      numa_id       vendor")
        for host in hosts:
            for index in range(host.gpus):
                name, model = host.name if index == 0 else "", host.model if given.has("w") else host.model[:15]
                print(f"{name:11}{index:>7} {model:>15}       470.57          7.0            0       Nvidia")
        return 0
    rows = [_static(host) for host in hosts]
    if given.has("o") or given.has("json"):
        return _formatted("lshosts", "HOSTS", given, rows)
    print("HOST_NAME      type    model  cpuf ncpus maxmem maxswp server RESOURCES")
    for row in rows:
        print(
            f"{row['HOST_NAME']:11} {row['TYPE']:>7} {row['MODEL']:>8}  12.5 {row['NCPUS']:>5} {row['MAXMEM']:>6}"
            f"      -    Yes ({row['RESOURCES']})"
        )
    return 0


def _static(host: Host) -> Mapping[str, str]:
    return {
        "HOST_NAME": host.name,
        "TYPE": "X86_64",
        "MODEL": "Intel_E5",
        "CPUF": "12.50",
        "NCPUS": str(host.slots),
        "MAXMEM": "16030M",
        "MAXSWP": "-",
        "SERVER": "Yes",
        "NPROCS": "1",
        "NCORES": str(host.slots),
        "NTHREADS": "1",
        "MAXTMP": "81886M",
        "RESOURCES": " ".join(host.resources),
    }
