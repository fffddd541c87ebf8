"""Files of weights: used as the documentation says, by a Python that knows nothing of this package."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from fedclade.models import make
from fedclade.models.weights import Layout, file_facts, flatten, state_of

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_recipe_for_a_model_without_this_package(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = make("lenet5", (1, 28, 28), 3)
    scaling = {"numbers": [{"name": "0", "mean": 0.5, "std": 2.0}]}  # as runs write it
    facts = file_facts("lenet5", (1, 28, 28), ("cat", "dog", "owl"), scaling, {"name": "classification"})
    save_file(state_of(make("lenet5", (1, 28, 28), 3), flatten(module)), tmp_path / "cluster-0.safetensors", facts)
    recipe = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert recipe is not None
    blocked = "import sys; sys.modules['fedclade'] = None\n"
    command = [sys.executable, "-c", blocked + recipe[1]]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    best = int(module((torch.zeros(1, 1, 28, 28) - 0.5) / 2).argmax())
    assert said.strip() == str([("cat", "dog", "owl")[best]])


def test_layers_are_found_again_in_what_was_taken_of_them() -> None:
    layout = Layout(("a.weight", "b.weight", "b.bias", "c.weight", "seen"), ((2, 3), (1, 2), (2,), (5,), (1,)), 15)
    vector = np.arange(layout.size)
    for layers in (None, "head", ("b",), ("c", "a"), ("a", "b", "c")):
        taken = vector[layout.select(layers)]
        for name, place in layout.within(layers).items():
            assert np.array_equal(taken[place], vector[layout.layers[name]])
    assert list(layout.within(("c", "a"))) == ["a", "c"]
    assert list(layout.within("head")) == ["c"]
