"""How long a checkpoint of sharded state holds the training up: saved at once, and from a thread.

    python benchmarks/save_stall.py --mib 512 --ranks 2 --folder /scratch/me

FSDP2 on CPUs with gloo, a model and the state of AdamW of so many MiB in all ranks together, saved `--saves` times
each way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

WIDTH = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="size of a checkpoint, in all ranks together")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--saves", type=int, default=5, help="of each kind; the first of each is left out")
    parser.add_argument("--folder", help="where to save; default: the folder of temporary files")
    given = parser.parse_args()
    if "RANK" in os.environ:
        measure(given.mib, given.saves)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(given.ranks)]
        environ = os.environ | {"HPCDL_CHECKPOINT_DIR": folder, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *launcher, __file__, *sys.argv[1:]], env=environ, check=True)


def measure(mib: int, saves: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    import hpcdl.trainer as hpcdl
    from hpcdl.trainer import checkpoints
    from hpcdl.trainer.background import BackgroundSaves
    from hpcdl.trainer.sharded import Parts
    from hpcdl.trainer.torch import Ranks

    session = hpcdl.attach()
    dist.init_process_group("gloo")
    layers = max(1, mib * (1 << 20) // (3 * 4 * WIDTH * WIDTH))  # weights and two moments, of 4 bytes
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(1, WIDTH)).sum().backward()
    optimizer.step()
    group = Ranks().own_group()
    parts, ranks = Parts({"model": model, "optimizer": optimizer}, group), Ranks(group=group)
    times: dict[str, list[float]] = {"at once": [], "stall": [], "from a thread": []}
    background = BackgroundSaves(session, parts.snapshot, ranks)
    for number in range(saves):
        dist.barrier()
        began = time.monotonic()
        with session.checkpoint(2 * number, ranks) as folder:
            parts.save(folder)
        times["at once"].append(time.monotonic() - began)
        dist.barrier()
        began = time.monotonic()
        background.start(2 * number + 1)
        times["stall"].append(time.monotonic() - began)
        background.finish(None)
        times["from a thread"].append(time.monotonic() - began)
    found = {name: round(statistics.median(each[1:] or each), 3) for name, each in times.items()}
    if session.rank == 0:
        newest = checkpoints.complete(folder.parent)[0]
        size = sum(each.stat().st_size for each in newest.path.rglob("*") if each.is_file())
        whole = {"mib": size >> 20, "ranks": dist.get_world_size(), **found}
        print(json.dumps({**whole, "stall of a save": round(found["stall"] / found["from a thread"], 3)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
