"""The trainer guide's scripts for frameworks, as they stand, are suspended and go on where they were."""

import pytest

from tests.frameworks.trained import HERE, Trained


@pytest.mark.parametrize("name,stop", [("hf_train.py", 5)])
def test_suspended_and_resumed(trained: Trained, name: str, stop: int) -> None:
    answer, began = trained.run([str(HERE / "guide.py"), name], (stop,))
    assert began == [0, stop]
    assert answer == name
