"""The other callbacks of a Keras fit: what Keras' own keep, saved beside the variables, and what is not saved, named.

A fit that is suspended and resumed goes on with the best values, best weights and counters that it had. Keras itself
resets them as a training begins, and they change at the ends of batches and epochs; so the callback of `keras.py` comes
last, wherever in the list the script has put it.
"""

from __future__ import annotations

import dis
import json
import os
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence, MutableSet
from pathlib import Path
from typing import Any

from hpcdl.trainer.parts import has_state
from hpcdl.trainer.session import log
from hpcdl.trainer.values import decode, encode

STATES = "callbacks.json"
ARRAYS = "callbacks.npz"
KEPT = {
    "MonitorCallback": ("best",),
    "EarlyStopping": ("best", "best_epoch", "best_weights", "wait", "stopped_epoch"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "OrbaxCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_total_batches_seen"),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
    "History": ("history", "epoch"),
}
"""By Keras' class, and so of the script's classes that are derived from it: the attributes that a fit changes."""
CHANGEABLE = (MutableSequence, MutableMapping, MutableSet, deque)
BEGINNING = ("__init__", "set_model", "set_params")


class OtherCallbacks:
    """Those of the fit that `own`, hpcdl's, is a callback of."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._list: Any = None  # Keras' list of all
        self._others: list[Any] = []

    def arrange(self, resumed: bool) -> None:
        """While Keras makes its list, before it calls any of them: `own` becomes the last one. What would load and save
        the fit in another way is left out, and a log that is `resumed` is appended to."""
        import keras

        self._list = _list_in_the_making(keras.callbacks.CallbackList)
        if self._list is None:
            return
        self._others = []
        for each in _flat(self._list):
            if isinstance(each, keras.callbacks.BackupAndRestore):
                log.warning(
                    "%s does nothing in this fit, which hpcdl saves and resumes: %s is neither read nor written",
                    type(each).__name__,
                    each.backup_dir,
                )
            elif each is not self._own:
                self._others.append(each)
                if isinstance(each, keras.callbacks.CSVLogger):
                    each.append = each.append or resumed
        self._list.callbacks = [*self._others, self._own]

    def check(self, data: Any) -> None:
        """As a fit begins: one line, where some change and nothing of that is saved; and one of the fit's `data`, a
        PyDataset or None. Raises TypeError for what could not be saved later."""
        if self._list is None:
            return
        for each in self._others:
            _encoded(each, [])
        unsaved = [f"{type(each).__name__} ({', '.join(names)})" for each in self._others if (names := _unsaved(each))]
        if unsaved:
            log.warning(
                "hpcdl saves what Keras' own callbacks keep, and of others the state_dict(), where they have that and "
                "load_state_dict(state). These may begin anew at a resume: %s",
                ", ".join(unsaved),
            )
        if data is not None and (names := _unsaved(data)):
            log.warning(
                "hpcdl does not save what %s changes (%s): derive that from the epoch, or the data may be other data "
                "after a resume",
                type(data).__name__,
                ", ".join(names),
            )

    def mute(self) -> None:
        """The batches that are done are passed over: they are nothing to the others."""
        if self._list is not None:
            self._list.callbacks = [self._own]

    def join(self, epoch: int) -> None:
        """The others come back, in the middle of the epoch or at its begin."""
        if self._list is not None:
            self._list.callbacks = [*self._others, self._own]
            for each in self._others:
                each.on_epoch_begin(epoch, {})

    def begin_batch(self, batch: int) -> None:
        """What `own` has been told already."""
        for each in self._others:
            each.on_train_batch_begin(batch, {})

    def save(self, folder: Path) -> None:
        """Write what they keep. Raises TypeError, by name, for what cannot be saved."""
        arrays: list[Any] = []
        states = [{"class": type(each).__name__, "state": _encoded(each, arrays)} for each in self._others]
        (folder / STATES).write_text(json.dumps(states))
        if arrays:
            import numpy

            with open(folder / ARRAYS, "wb") as file:
                numpy.savez(file, *arrays)

    def load(self, folder: Path) -> None:
        """Give each, the first of a class what the first of it had, what was saved."""
        if not (folder / STATES).exists():
            log.warning("%s is of an earlier hpcdl, which kept nothing of callbacks: they begin anew", folder.name)
            return
        states: dict[str, list[Any]] = {}
        for each in json.loads((folder / STATES).read_text()):
            states.setdefault(each["class"], []).append(each["state"])
        arrays = _arrays(folder)
        for callback in self._others:
            name = type(callback).__name__
            if states.get(name):
                _set_state(callback, decode(states[name].pop(0), lambda number: arrays[f"arr_{number}"]))
            elif _state(callback):
                log.warning("the checkpoint has nothing of the callback %s, which begins anew", name)


def _list_in_the_making(kind: type) -> Any:
    """The outermost of the lists of callbacks that are being made, one within the other; None without one."""
    frame: types.FrameType | None = sys._getframe(3)  # of who called `set_model` of hpcdl's callback
    found = None
    while frame is not None and isinstance(frame.f_locals.get("self"), kind):
        found = frame.f_locals["self"]
        frame = frame.f_back
    return found


def _flat(callbacks: Any) -> Iterator[Any]:
    for each in callbacks.callbacks:
        if isinstance(each, type(callbacks)):
            yield from _flat(each)
        else:
            yield each


def _arrays(folder: Path) -> dict[str, Any]:
    if not (folder / ARRAYS).exists():
        return {}
    import numpy

    with numpy.load(folder / ARRAYS, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _state(callback: Any) -> dict[str, Any]:
    """All of it that is saved."""
    classes = [each.__name__ for each in type(callback).__mro__ if _is_keras(each)]
    names = dict.fromkeys(name for each in classes for name in KEPT.get(each, ()))
    state = {name: getattr(callback, name) for name in names if hasattr(callback, name)}
    if "CSVLogger" in classes and os.path.isfile(callback.filename):
        state["size"] = os.path.getsize(callback.filename)
    if has_state(callback):
        state["state_dict"] = callback.state_dict()
    return state


def _set_state(callback: Any, state: dict[str, Any]) -> None:
    if "best" in state and not hasattr(callback, "best"):
        callback._set_monitor_op()  # by which Keras 3.5 makes an EarlyStopping's, at the end of its first epoch
    for name in _state(callback):
        if name == "state_dict":
            callback.load_state_dict(state[name])
        elif name == "size":
            # What was logged after the checkpoint is logged again.
            if state.get(name, 0) < os.path.getsize(callback.filename):
                os.truncate(callback.filename, state[name])
        elif name in state:
            setattr(callback, name, state[name])


def _encoded(callback: Any, arrays: list[Any]) -> Any:
    import keras
    import numpy

    def array(value: Any) -> int | None:
        if keras.ops.is_tensor(value) or isinstance(value, keras.Variable):
            value = keras.ops.convert_to_numpy(value)
        if not isinstance(value, (numpy.ndarray, numpy.generic)) or value.dtype.hasobject:
            return None
        # NumPy has no bfloat16 and its like of its own; all of them fit into float32 exactly.
        arrays.append(value if value.dtype.kind in "biufcSU" else value.astype("float32"))
        return len(arrays) - 1

    return encode(_state(callback), type(callback).__name__, array)


def _is_keras(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "keras"


def _unsaved(callback: Any) -> list[str]:
    """The names of what a callback of the script's own seems to change: what can change in its place, and what one of
    its methods sets."""
    if has_state(callback):
        return []
    keras_classes = [each for each in type(callback).__mro__ if _is_keras(each)]
    own_classes = [each for each in type(callback).__mro__ if not _is_keras(each) and each is not object]
    if not own_classes:  # a LambdaCallback changes what its functions name
        return sorted(name for each in vars(callback).values() for name in _changeable_in(each))
    of_keras = {name for each in keras_classes for name in _set_by(vars(each).items())}
    methods = [pair for each in own_classes for pair in vars(each).items() if pair[0] not in BEGINNING]
    changing = set(_set_by(methods))
    return [
        name
        for name, value in vars(callback).items()
        if name not in of_keras and (name in changing or isinstance(value, CHANGEABLE))
    ]


def _set_by(methods: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """The names of the attributes that these set."""
    for _, method in methods:
        if isinstance(method, types.FunctionType):
            yield from (each.argval for each in dis.get_instructions(method) if each.opname == "STORE_ATTR")


def _changeable_in(function: Any) -> Iterator[str]:
    """The names of the script's lists and the like that a function uses."""
    if not isinstance(function, types.FunctionType):
        return
    for name in function.__code__.co_names:
        if isinstance(function.__globals__.get(name), CHANGEABLE):
            yield name
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        if isinstance(cell.cell_contents, CHANGEABLE):
            yield name
