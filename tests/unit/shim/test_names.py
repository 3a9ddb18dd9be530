# SPDX-License-Identifier: Apache-2.0
"""Names of real modules' and optimizers' tensors."""

from __future__ import annotations

import gc
import json
import weakref

import pytest

torch = pytest.importorskip("torch")

from sentineld.control.frames import FROM_SHIM  # noqa: E402
from sentineld.shim import names as names_module  # noqa: E402
from sentineld.shim.names import NAME_BYTES_MAX, NAMES_MAX, Names  # noqa: E402

WIDE = 64
"""A weight of this many rows and columns takes 16 KiB; a bias takes 256 bytes."""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(WIDE, WIDE)
        self.two = torch.nn.Linear(WIDE, WIDE)
        self.register_buffer("mean", torch.zeros(WIDE * WIDE))


def trained(net: torch.nn.Module, names: Names) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(WIDE)).sum().backward()
    optimizer.step()
    names.add_optimizer(optimizer)
    names.add_optimizer(optimizer)
    return optimizer


class Applied(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x))


def test_each_role_is_named_after_its_parameter() -> None:
    net, names = Applied(), Names()
    names.add_module(net)
    optimizer = trained(net, names)
    rows = names.rows()
    assert {(role, name) for _, role, name in rows} == {
        *(
            (role, f"{layer}.weight")
            for role in ("parameter", "gradient")
            for layer in ("one", "two")
        ),
        ("buffer", "mean"),
        *(
            ("optimizer", f"{layer}.weight {key}")
            for layer in ("one", "two")
            for key in ("exp_avg", "exp_avg_sq")
        ),
    }
    addresses = {name: address for address, role, name in rows if role == "parameter"}
    assert addresses["one.weight"] == net.one.weight.data_ptr()
    assert len({address for address, _, _ in rows}) == len(rows)
    del optimizer


def test_tensors_below_a_page_have_no_name() -> None:
    net, names = torch.nn.Linear(4, 4), Names()
    names.add_module(net)
    assert names.rows() == []


def test_shared_memory_is_named_once_as_a_parameter() -> None:
    net, names = Net(), Names()
    net.two.weight = net.one.weight
    net.view = torch.nn.Parameter(net.one.weight.detach()[: WIDE // 2])
    names.add_module(net)
    found = [name for _, role, name in names.rows() if role == "parameter"]
    assert len(found) == 1


def test_a_second_model_of_the_same_paths_has_its_class_in_the_name() -> None:
    first, second, names = Net(), Net(), Names()
    names.add_module(first)
    names.add_module(second)
    found = [name for _, role, name in names.rows() if role == "parameter"]
    assert found == ["one.weight", "two.weight", "Net.one.weight", "Net.two.weight"]


def test_a_deleted_model_and_its_optimizer_are_forgotten() -> None:
    net, names = Applied(), Names()
    names.add_module(net)
    optimizer = trained(net, names)
    assert names.rows()
    del net, optimizer
    gc.collect()
    assert names.rows() == []


def test_a_model_or_optimizer_that_cannot_be_hashed_costs_no_other_its_names() -> None:
    class Unhashable(Applied):
        __hash__ = None  # type: ignore[assignment]

    class UnhashableAdam(torch.optim.Adam):
        __hash__ = None  # type: ignore[assignment]

    odd, net, names = Unhashable(), Applied(), Names()
    names.add_module(odd)
    names.add_module(net)
    optimizers = [trained(net, names), UnhashableAdam(odd.one.parameters())]
    odd.one(torch.ones(WIDE)).sum().backward()
    optimizers[1].step()
    names.add_optimizer(optimizers[1])
    found = {name for _, _, name in names.rows()}
    assert {"one.weight", "mean", "two.weight exp_avg"} <= found
    assert "a parameter outside of the modules exp_avg" in found


def test_deleted_models_leave_nothing_behind() -> None:
    def references() -> int:
        gc.collect()
        return sum(isinstance(one, weakref.ref) for one in gc.get_objects())

    names = Names()
    before = references()
    for _ in range(3):
        net = Net()
        names.add_module(net)
        found = [name for _, role, name in names.rows() if role == "parameter"]
        assert found == ["one.weight", "two.weight"]
        del net
    assert references() == before


def test_a_parameter_outside_of_the_modules() -> None:
    names = Names()
    weight = torch.nn.Parameter(torch.ones(WIDE * WIDE))
    optimizer = torch.optim.SGD([weight], momentum=0.5)
    weight.sum().backward()
    optimizer.step()
    names.add_optimizer(optimizer)
    ((address, role, name),) = names.rows()
    assert (role, name) == ("optimizer", "a parameter outside of the modules momentum_buffer")
    assert address == optimizer.state[weight]["momentum_buffer"].data_ptr()


def test_tensors_without_a_storage_are_left_out() -> None:
    net, names = torch.nn.Module(), Names()
    net.lazy = torch.nn.LazyLinear(WIDE)
    net.register_buffer("adjacency", torch.eye(WIDE).to_sparse())
    net.embedding = torch.nn.Embedding(WIDE, WIDE, sparse=True)
    net.head = torch.nn.Linear(WIDE, WIDE)
    names.add_module(net)
    net.head(net.embedding(torch.arange(3))).sum().backward()
    assert net.embedding.weight.grad.layout is torch.sparse_coo
    assert {(role, name) for _, role, name in names.rows()} == {
        ("parameter", "embedding.weight"),
        ("parameter", "head.weight"),
        ("gradient", "head.weight"),
    }


def test_the_rows_fit_into_one_frame_whatever_the_names_are() -> None:
    net, names = torch.nn.Module(), Names()
    net.add_module("層" * 300, torch.nn.Linear(WIDE, WIDE))
    names.add_module(net)
    (weight, *_) = names.rows()
    assert weight[2] == "層" * ((NAME_BYTES_MAX - len(".weight")) // 6) + ".weight"
    assert NAMES_MAX * (len(json.dumps(weight)) + len(", ")) < FROM_SHIM.frame_bytes


def test_number_and_length_of_names_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    net, names = torch.nn.Module(), Names()
    net.add_module("x" * 300, torch.nn.Linear(WIDE, WIDE))
    for number in range(5):
        net.add_module(f"layer{number}", torch.nn.Linear(WIDE, WIDE))
    names.add_module(net)
    rows = names.rows()
    assert len(rows) == 6
    assert len(rows[0][2]) == NAME_BYTES_MAX
    assert rows[0][2].endswith("x.weight")
    monkeypatch.setattr(names_module, "NAMES_MAX", 3)
    assert names.rows() == rows[:3]
