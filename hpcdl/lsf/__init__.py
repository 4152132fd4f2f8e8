"""LSF, by its commands."""

from hpcdl.lsf.adapter import Lsf, Ways

__all__ = ["Lsf", "Ways"]
