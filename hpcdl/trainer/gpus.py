"""The GPUs that CUDA shows to a process with this environment, by UUID.

CUDA is asked in a short-lived child, through its driver library: asking in the trainer itself would initialise CUDA
there, and then its forked children could no longer use a GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import uuid

TIMEOUT_S = 60.0
LIBRARY = "libcuda.so.1"


def visible() -> list[str] | None:
    """UUIDs as CUDA_VISIBLE_DEVICES names them, or None where there is no driver or it does not answer."""
    try:
        found = subprocess.run(
            [sys.executable, "-I", "-S", __file__], capture_output=True, timeout=TIMEOUT_S, check=True, text=True
        )
        seen = json.loads(found.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return [str(each) for each in seen] if isinstance(seen, list) else None


def same(seen: list[str], granted: list[str]) -> bool:
    """Whether both name the same devices; the driver gives the number only, without GPU- or MIG- before it."""
    return {_number(each) for each in seen} == {_number(each) for each in granted}


def _number(name: str) -> str:
    return re.sub(r"^(GPU-|MIG-)+", "", name).lower()


def touched() -> bool:
    """Whether this process has a device of NVIDIA's open, so that CUDA is (or was) initialised in it."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/nvidia"):
                return True
        except OSError:
            continue
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def driver_loaded() -> bool:
    """Whether something in this process has loaded CUDA's driver library; it may have looked for GPUs with it."""
    with open("/proc/self/maps") as maps:
        return any("/libcuda.so" in line for line in maps)


def ask_driver() -> list[str] | None:
    """As `visible`, but asked in this very process."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
        by_uuid = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    except (OSError, AttributeError):
        return None
    status = cuda.cuInit(0)
    if status == 100:  # CUDA_ERROR_NO_DEVICE
        return []
    count = ctypes.c_int()
    if status != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return None
    seen = []
    for index in range(count.value):
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if cuda.cuDeviceGet(ctypes.byref(device), index) != 0 or by_uuid(ctypes.byref(raw), device) != 0:
            return None
        seen.append(f"GPU-{uuid.UUID(bytes=bytes(raw))}")
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(ask_driver()))
