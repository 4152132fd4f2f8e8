"""What a checkpoint keeps of Hugging Face's logged losses, whose names differ from version to version."""

from __future__ import annotations

import json
from types import SimpleNamespace

from hpcdl.trainer import hf


def test_a_number_that_is_only_logged_does_not_fail_a_checkpoint() -> None:
    trainer = SimpleNamespace(_total_loss_scalar=1.5, _globalstep_last_logged=3, current_flos=object())
    kept = {"_total_loss_scalar": 1.5, "_globalstep_last_logged": 3}
    for loss in (None, "none", object(), []):
        place = hf._losses(trainer, loss)
        assert json.loads(json.dumps(place)) == {"loss": None, "losses": kept}
    assert hf._losses(SimpleNamespace(), 0.25) == {"loss": 0.25, "losses": {}}


def test_only_what_this_version_has_is_set_again() -> None:
    """The checkpoint may be another version's."""
    trainer = SimpleNamespace(_total_loss_scalar=0.0, training_step=len)
    hf._restore_losses(trainer, {"loss": None, "losses": {"_total_loss_scalar": 1.5, "_initial_global_step": 2}})
    hf._restore_losses(trainer, {})
    assert vars(trainer) == {"_total_loss_scalar": 1.5, "training_step": len}
