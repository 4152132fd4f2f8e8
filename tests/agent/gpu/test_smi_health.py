"""What nvidia-smi tells of a GPU's health; Xids it does not tell."""

from hpcdl.agent.gpu.smi import FIELDS, HEALTH_FIELDS, gpu_argv, parse_gpus
from hpcdl.core.model.health import Health

HEAD = "uuid, index, ecc.errors.uncorrected.volatile.total, retired_pages.pending"


def health(cells: str) -> Health | None:
    (row,) = parse_gpus(f"{HEAD}\n{cells}\n").rows
    return row.sample.health


def test_counts_and_pages() -> None:
    assert health("GPU-a, 0, 3, Yes") == Health(ecc_uncorrected=3, retired_pending=True)
    assert health("GPU-a, 0, 0, No") == Health(ecc_uncorrected=0, retired_pending=False)


def test_a_cell_that_says_nothing_is_none() -> None:
    assert health("GPU-a, 0, [N/A], [N/A]") == Health()
    assert health("GPU-a, 0, [Unknown Error], [Not Supported]") == Health()


def test_a_table_without_these_columns() -> None:
    (row,) = parse_gpus("uuid, index\nGPU-a, 0\n").rows
    assert row.sample.health == Health()


def test_what_is_asked() -> None:
    assert gpu_argv("x", mig=False) == ["x", f"--query-gpu={','.join(FIELDS)}", "--format=csv"]
    assert gpu_argv("x", health=True)[1].endswith(",".join(HEALTH_FIELDS))
