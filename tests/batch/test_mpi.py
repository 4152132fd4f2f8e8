"""Which steps of a batch script are programs of MPI's, by their text and the files beside it."""

import shlex
from pathlib import Path

import pytest

from hpcdl.batch.mpi import DEFAULT, certain, doubts

JSRUN = 'jsrun -n 4 -a 1 -g 1 -c 1 --smpiargs="-gpu" python3 -c "from mpi4py import MPI; print(MPI.COMM_WORLD.rank)"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    for name, text in {
        "train.py": "import torch\nimport util\n",
        "util.py": "from deep import comm\n",
        "deep/__init__.py": "",
        "deep/comm.py": "def ranks():\n    from mpi4py import MPI\n    return MPI.COMM_WORLD.size\n",
        "plain.py": "import torch, argparse\nBACKENDS = ['nccl', 'mpi']\n",
        "old.py": "print 'no Python 3'\nimport horovod.torch as hvd\n",
        "backend.py": "import torch.distributed as dist\ndist.init_process_group('mpi')\n",
        "run.sh": "#!/bin/bash\nexport A=1\npython $1 train.py\n",
        "plain.sh": "#!/bin/bash\npython plain.py\n",
        "pass.sh": '#!/bin/bash\nulimit -c 0\nexec "$@"\n',
        "deep/rank.py": "import mpi4py\n",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "hello").write_bytes(b"\x7fELF\2\1\1\0\0libmpi.so.40\0main\0")
    (tmp_path / "other").write_bytes(b"\x7fELF\2\1\1\0\0libmpg123.so\0")
    for name in ("hello", "other", "pass.sh"):
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    "script, said",
    [
        (JSRUN, "--smpiargs=-gpu"),
        ("jsrun -n4 -M '-gpu' python plain.py", "-M=-gpu"),
        ("jsrun -n4 --smpiargs=off python train.py", ""),
        ('jsrun -n4 -M "none" python train.py', ""),
        ("jsrun -n4 python train.py", "jsrun: comm.py imports mpi4py"),
        ("jsrun -n1 -a4 ./hello", "jsrun: hello is linked with MPI"),
        ("jsrun -n1 ./hello", ""),
        ("jsrun -n4 ./nobody_knows", ""),
        ("srun --mpi=pmix python plain.py", "--mpi=pmix"),
        ("srun -n 4 --mpi pmi2 python plain.py", "--mpi=pmi2"),
        ("srun --mpi=none python train.py", ""),
        ("srun --mpi=list", ""),
        ("LAUNCH='srun --mpi=pmix'\n$LAUNCH python plain.py", "--mpi=pmix"),
        ("OPTS=--mpi=none\nsrun $OPTS python train.py", ""),
        ('OPTS=(--mpi=pmix -n 4)\nsrun "${OPTS[@]}" python plain.py', "--mpi=pmix"),
        ("OPTS=(-n 4)\nsrun ${OPTS[*]} python train.py", "srun: comm.py imports mpi4py"),
        ('CMD="python train.py"\neval "srun $CMD"', "srun: comm.py imports mpi4py"),
        ("echo 'now srun python train.py'\nsrun python plain.py", ""),
        ("echo begins; srun python train.py", "srun: comm.py imports mpi4py"),
        ("export SLURM_MPI_TYPE=pmix_v4\nsrun python plain.py", "SLURM_MPI_TYPE=pmix_v4"),
        ("srun python train.py", "srun: comm.py imports mpi4py"),
        ("srun python -u -m train", "srun: comm.py imports mpi4py"),
        ("srun python -m mpi4py.futures x.py", "srun: it runs mpi4py.futures"),
        ("srun -n1 python train.py", ""),
        ("srun -l python train.py -n 1", "srun: comm.py imports mpi4py"),
        ("srun python plain.py", ""),
        ("srun python plain.py --backend mpi", "srun: its backend is mpi"),
        ("srun python backend.py", "srun: the backend in backend.py is mpi"),
        ("srun python old.py", "srun: old.py imports horovod"),
        ("srun -n4 bash run.sh x", "srun: comm.py imports mpi4py"),
        ("srun ./run.sh", "srun: comm.py imports mpi4py"),
        ("srun bash plain.sh", ""),
        ("srun bash -c 'cd x; python -c \"import mpi4py\"'", "srun: the command imports mpi4py"),
        ("srun singularity exec --nv i.sif python train.py", "srun: comm.py imports mpi4py"),
        ("MAIN=train.py\nsrun python ${MAIN} --lr 1", "srun: comm.py imports mpi4py"),
        ("cat > new.py <<EOF\nfrom mpi4py import MPI\nEOF\nsrun python new.py", 'srun: the script has "from mpi4py"'),
        ("srun torchrun train.py", ""),
        ("srun accelerate launch train.py", ""),
        ("srun -n1 mpirun -n 4 python train.py", ""),
        ("mpirun -n 4 python train.py", ""),
        ("python train.py\nsrun hostname", ""),
        ("# srun --mpi=pmix x\necho 'no srun --mpi'", ""),
        ("pip install mpi4py\nsrun python plain.py", ""),
        ("srun ./hello", "srun: hello is linked with MPI"),
        ("srun numactl -N0 ./hello", "srun: hello is linked with MPI"),
        ("srun ./other", ""),
        ('OPTS=-n4\nOPTS+=" --mpi=pmix"\nsrun $OPTS python plain.py', "--mpi=pmix"),
        ('OPTS=-n4\nOPTS="$OPTS --mpi=pmix"\nsrun ${OPTS} python plain.py', "--mpi=pmix"),
        ('OPTS=(\n  -n4\n  --mpi=pmix\n)\nsrun "${OPTS[@]}" python plain.py', "--mpi=pmix"),
        ("MPI=${MPI:---mpi=pmix}\nsrun $MPI python plain.py", "--mpi=pmix"),
        ("srun $SITE_OPTIONS --mpi=pmix python plain.py", "--mpi=pmix"),
        ("set opts = ( --mpi=pmix )\nsrun $opts python plain.py", "--mpi=pmix"),
        ("setenv SLURM_MPI_TYPE pmix\nsrun python plain.py", "SLURM_MPI_TYPE=pmix"),
        ('run() { srun "$@"; }\nrun python train.py', "srun: comm.py imports mpi4py"),
        ('run() { srun "$@"; }\nrun python plain.py', ""),
        ("srun ./pass.sh python train.py", "srun: comm.py imports mpi4py"),
        ("srun ./pass.sh python plain.py", ""),
        ("cd deep\nsrun python rank.py", "srun: rank.py imports mpi4py"),
        ("srun -D deep python rank.py", "srun: rank.py imports mpi4py"),
        ("srun bash -c 'cd deep && python rank.py'", "srun: rank.py imports mpi4py"),
        ("cd deep\ncd ..\nsrun python plain.py", ""),
    ],
)
def test_what_needs_a_pmi(script: str, said: str, folder: Path) -> None:
    found = [each for each in doubts(f"#!/bin/sh\n{script}\n", "t.sh", str(folder), False) if each.needs != DEFAULT]
    told = [f"{each.said}: {each.why}".partition(", and tasks of hpcdl")[0].partition(": tasks of hpcdl")[0]
            for each in found]  # fmt: skip
    assert told == ([said] if said else [])
    assert all(each.doubt and each.where.startswith("t.sh:") for each in found)


@pytest.mark.parametrize(
    "script, one_task, known",
    [
        ("srun python missing.py", False, False),
        ("srun $COMMAND", False, False),
        ("srun python -m installed.package", False, False),
        ("srun python plain.py", False, True),
        ("srun torchrun missing.py", False, True),
        ("srun ./other", False, True),
        ("srun python missing.py", True, True),
        ("srun -n4 python missing.py", True, False),
        ("srun --ntasks-per-gpu=1 python missing.py", True, False),
        ("srun --mpi=none python missing.py", False, True),
        ("echo 'srun says so'", False, True),
    ],
)
def test_what_nobody_knows_is_the_default_of_the_site(script: str, one_task: bool, known: bool, folder: Path) -> None:
    found = [each.needs for each in doubts(f"#!/bin/sh\n{script}\n", "t.sh", str(folder), one_task)]
    assert found == ([] if known else [DEFAULT])


@pytest.mark.parametrize(
    "command, said",
    [
        ("numactl -N0 ./hello 4", "hello is linked with it"),
        ("hello", "hello is linked with it"),
        ("mpirun -n 2 ./hello", ""),
        ("./other plain.py ./missing", ""),
        ("python rank.py", "rank.py imports mpi4py"),
        ("torchrun rank.py", ""),
        ("python -m torch.distributed.run rank.py", ""),
        ("python deep/comm.py", ""),  # in a function that may never be called
        ("python train.py rank.py", ""),
        ("env A=1 python3 -uc 'import os; from mpi4py import MPI; print(MPI)'", "the command imports mpi4py"),
        ("bash -c 'from mpi4py import MPI'", ""),
    ],
)
def test_what_is_certain_when_a_step_starts(command: str, said: str, folder: Path) -> None:
    (folder / "rank.py").write_text("import os\nfrom mpi4py import MPI\n")
    assert certain(shlex.split(command), str(folder), str(folder)) == said
