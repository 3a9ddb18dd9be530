# SPDX-License-Identifier: Apache-2.0
"""Layer ids of real modules, and the boundaries that a training's hooks write to the ring."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

torch = pytest.importorskip("torch")

from sentineld.shim import hooks  # noqa: E402
from sentineld.shim.hooks import OUTSIDE_LAYER, Layers  # noqa: E402
from sentineld.shim.names import Names  # noqa: E402
from tests.unit.shim.shimmed import shimmed  # noqa: E402


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU()))


def test_leaf_modules_are_numbered_from_one_and_the_others_are_outside() -> None:
    layers, model = Layers(Names()), net()
    assert layers.register(model) == OUTSIDE_LAYER
    assert layers.names == ["", "0", "1.0"]
    ids = [layers.by_module[id(module)] for module in model.modules()]
    assert ids == [OUTSIDE_LAYER, 1, OUTSIDE_LAYER, 2]
    assert layers.register(model) == OUTSIDE_LAYER
    assert layers.names == ["", "0", "1.0"]


def test_equal_paths_of_several_models_get_different_names() -> None:
    layers = Layers(Names())
    models = [net() for _ in range(3)]
    for model in models:
        layers.register(model)
    paths = ["0", "1.0", "Sequential.0", "Sequential.1.0", "Sequential.0#2", "Sequential.1.0#2"]
    assert layers.names == ["", *paths]
    alone = [torch.nn.ReLU() for _ in range(2)]
    assert [layers.register(one) for one in alone] == [7, 8]
    assert layers.names[7:] == ["ReLU", "ReLU#2"]


def test_a_deleted_module_is_forgotten_but_its_number_is_not_given_to_another_type() -> None:
    layers, model = Layers(Names()), net()
    layers.register(model)
    del model
    gc.collect()
    assert layers.by_module == {}
    other = torch.nn.ReLU()
    assert layers.register(other) == 3


def test_modules_created_one_after_the_other_have_one_number() -> None:
    layers = Layers(Names())
    numbers = [layers.register(torch.nn.CrossEntropyLoss()) for _ in range(3)]
    assert numbers == [1, 1, 1]
    assert layers.names == ["", "CrossEntropyLoss"]
    for _ in range(3):
        model = net()
        layers.register(model)
        assert layers.names == ["", "CrossEntropyLoss", "0", "1.0"]
        assert layers.by_module[id(model[1][0])] == 3
        del model


def test_modules_that_are_alive_together_keep_their_numbers_whichever_is_freed_first() -> None:
    layers = Layers(Names())
    for freed_first in (0, 1, 0):
        losses = [torch.nn.CrossEntropyLoss() for _ in range(2)]
        assert [layers.register(loss) for loss in losses] == [1, 2]
        del losses[freed_first]
        again = torch.nn.CrossEntropyLoss()
        assert layers.register(again) == 1 + freed_first
        del losses, again
    assert layers.names == ["", "CrossEntropyLoss", "CrossEntropyLoss#2"]
    assert layers.by_module == {}


def test_a_freed_number_can_be_given_when_no_other_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "LAYERS_MAX", 2)
    layers = Layers(Names())
    assert [layers.register(torch.nn.ReLU()) for _ in range(3)] == [1, 1, 1]
    relus = [torch.nn.ReLU() for _ in range(2)]
    assert [layers.register(relu) for relu in relus] == [1, OUTSIDE_LAYER]


def test_layers_beyond_the_records_field_are_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "LAYERS_MAX", 2)
    layers, model = Layers(Names()), net()
    layers.register(model)
    assert layers.names == ["", "0"]
    assert layers.by_module[id(model[1][0])] == OUTSIDE_LAYER


def test_shared_modules_have_the_paths_of_named_modules() -> None:
    layers, model, shared = Layers(Names()), net(), torch.nn.ReLU()
    model.append(torch.nn.ModuleDict({"first": shared, "inner": net(), "second": shared}))
    model.add_module("none", None)
    model[1].append(shared)
    layers.register(model)
    leaves = [path for path, module in model.named_modules() if not module._modules]
    assert layers.names == ["", *leaves]
    assert list(layers.by_module) == [id(module) for module in model.modules()]


@dataclass
class Unhashable(torch.nn.Module):
    """A data class that can be compared has no hash."""

    factor: float = 2.0

    def __post_init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Refusing(torch.nn.Linear):
    """Like torch.distributed.nn.RemoteModule."""

    def named_modules(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError("Method ``named_modules`` not supported for RemoteModule")


class Hidden(torch.nn.Sequential):
    """Its named_modules() omits the module itself."""

    def named_modules(self, *arguments: Any, **named: Any) -> Any:
        for module in self:
            yield from module.named_modules(*arguments, **named)


class Failing(torch.nn.Module):
    """Code of this class fails whenever its modules are read."""

    @property
    def _modules(self) -> NoReturn:
        raise RuntimeError

    @_modules.setter
    def _modules(self, value: object) -> None:
        pass


@pytest.mark.parametrize("kind", [Unhashable, lambda: Refusing(2, 2), Failing])
def test_no_code_of_a_module_prevents_its_registration(kind: Callable[[], Any]) -> None:
    layers, model = Layers(Names()), kind()
    assert layers.register(model) == 1
    within = torch.nn.Sequential(torch.nn.Sequential(kind()))
    assert layers.register(within) == OUTSIDE_LAYER
    assert layers.names == ["", type(model).__name__, "0.0"]


def test_a_module_that_hides_itself_is_registered() -> None:
    layers, model = Layers(Names()), Hidden(torch.nn.Linear(2, 2))
    assert layers.register(model) == OUTSIDE_LAYER
    assert layers.names == ["", "0"]


TRAINING = """
from sentineld.shim.hooks import Hooks, Layers
from sentineld.shim.names import Names
from sentineld.shim.stepless import MissingSteps
torch.set_num_threads(1)
names = Names()
layers = Layers(names)
ended = []
def step_ended():
    native.step_end()
    ended.append(len(ended))
    native.step_begin()
Hooks(native, layers, names, MissingSteps(ended.append), step_ended).install()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
def boundaries(first):
    rows = op_times.ring_records(native, first)
    rows = rows[rows["event"] == Event.BOUNDARY]
    return [[Boundary(int(r["detail"])).name, layers.names[int(r["layer"])]] for r in rows]
"""


STEPS = """
x = torch.ones(64, 64)
first = op_times.ring_head(native)
step(x)
found = {"disabled": [boundaries(first), list(layers.names)]}
layers.enabled = True
step(x)
first = op_times.ring_head(native)
step(x)
found["enabled"] = boundaries(first)
found["steps"] = len(ended)

from torch.utils.checkpoint import checkpoint
x = torch.ones(64, 64, requires_grad=True)
def checkpointed():
    checkpoint(model, x, use_reentrant=False).sum().backward()
    optimizer.step()
checkpointed()
first = op_times.ring_head(native)
checkpointed()
found["checkpointed"] = boundaries(first)

def with_loss():
    torch.nn.CrossEntropyLoss()(model(x), torch.zeros(64, dtype=torch.int64)).backward()
    optimizer.step()
with_loss()
found["with loss"] = []
for _ in range(2):
    first = op_times.ring_head(native)
    with_loss()
    rows = op_times.ring_records(native, first)
    rows = rows[rows["event"] == Event.BOUNDARY]
    found["with loss"].append(rows["layer"].tolist())
found["names"] = list(layers.names)

import gc
del optimizer
gc.collect()  # the optimizer of the next scenario is the only one
class MyAdam(torch.optim.Adam):
    def step(self, closure=None):
        loss = super().step(closure)
        if self.fails:
            raise ValueError
        return loss
torch.optim.Adam(model.parameters())  # torch adds hooks to the step() of this class, too
mine = MyAdam(model.parameters())
found["overridden"] = []
for mine.fails in (False, False, True, False, False):
    before = len(ended)
    model(x).sum().backward()
    try:
        mine.step()
    except ValueError:
        pass
    found["overridden"].append(len(ended) - before)

from torch import nn
from tests.unit.shim.test_hooks import Hidden, Refusing, Unhashable
class Views(nn.Module):
    "Returns a view whose grad_fn cannot be read, because its base has changed."
    def forward(self, x):
        base = x * 1
        first, _ = base.view(2, -1).unbind()
        base.mul_(2)
        return first
class UnhashableSGD(torch.optim.SGD):
    def __eq__(self, other):
        return self is other
weight = nn.Parameter(torch.ones(64, 64))
unhashable_optimizer = UnhashableSGD([weight], lr=0.1)
found["odd"] = {}
odd = {
    "unhashable": lambda: Unhashable()(x),
    "refusing": lambda: nn.Sequential(Refusing(64, 64))(x),
    "hidden": lambda: Hidden(nn.Linear(64, 64))(x),
    "views": lambda: Views()(x),
    "optimizer": unhashable_optimizer.step,
}
for name, act in odd.items():
    first = op_times.ring_head(native)
    try: act()
    except Exception as error: found["odd"][name] = repr(error)
    else: found["odd"][name] = [kind for kind, _ in boundaries(first) if kind != "OUTSIDE"]
layers.enabled = False
try: Views()(x)
except Exception as error: found["odd"]["disabled"] = repr(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The JSON value that STEPS prints. Each boundary is [kind, name of the layer], except in the
    scenario "with loss": there, it is the layer's index in found["names"]."""
    passed: dict[str, Any] = shimmed(TRAINING + STEPS)
    return passed


def test_a_step_passes_the_boundaries_of_its_layers_forward_and_backward(
    found: dict[str, Any],
) -> None:
    assert found["steps"] == 3
    forward = [["FORWARD", "0"], ["FORWARD", "1"], ["FORWARD", "2"]]
    backward = [["BACKWARD", "2"], ["BACKWARD", "1"], ["BACKWARD", "0"]]
    passed = found["enabled"]
    assert [row for row in passed if row[0] in ("FORWARD", "BACKWARD")] == forward + backward
    assert [row[0] for row in passed].count("OPTIMIZER") == 1
    assert passed[-1][0] == "STEP"  # the next step's first boundary


def test_an_optimizer_that_calls_the_step_of_its_base_class_ends_one_step(
    found: dict[str, Any],
) -> None:
    assert found["overridden"] == [1, 1, 0, 1, 1]


def test_a_disabled_shim_reports_no_layer(found: dict[str, Any]) -> None:
    passed, names = found["disabled"]
    assert names == [""]
    assert all(kind not in ("FORWARD", "BACKWARD") for kind, _ in passed)


def test_a_layer_that_backward_recomputes_is_entered_again(
    found: dict[str, Any],
) -> None:
    passed = found["checkpointed"]
    assert [name for kind, name in passed if kind == "BACKWARD"] == ["2", "1", "0"]
    assert [name for kind, name in passed if kind == "FORWARD"] == ["0", "1", "2"] * 2


def test_a_module_created_in_each_step_has_the_same_boundaries_in_all_steps(
    found: dict[str, Any],
) -> None:
    first, second = found["with loss"]
    assert first == second
    loss = found["names"].index("CrossEntropyLoss")
    assert first.count(loss) == 2  # forward and backward
    assert found["names"] == ["", "0", "1", "2", "CrossEntropyLoss"]


def test_no_code_of_a_module_output_or_optimizer_fails_because_of_the_hooks(
    found: dict[str, Any],
) -> None:
    forwards = {kind: ["FORWARD"] for kind in ("unhashable", "refusing", "hidden", "views")}
    odd = found["odd"]
    assert odd.pop("optimizer")[0] == "OPTIMIZER"
    assert odd == forwards
