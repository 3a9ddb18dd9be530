# SPDX-License-Identifier: Apache-2.0
"""Steps of a training that forks, runs a validation, uses several threads, or is interrupted.

The training's script also acts as the daemon.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from sentineld.shim.op_accesses import OTHER_THREAD, TOO_LONG
from sentineld.shim.runtime import FORKED_ACCESS_STEPS_MAX
from sentineld.shim.script_profiler import FORK
from tests.unit.shim.shimmed import shimmed

TRAINING = """
import os, select, socket, tempfile, threading
from torch.profiler import record_function
from sentineld.control.frames import FROM_SHIM, FrameBuffer, encode
from sentineld.shim import client, op_accesses, runtime
from sentineld.shim.start import hook
torch.set_num_threads(1)
client.RETRY_SECONDS = 0
folder = tempfile.TemporaryDirectory()
path = os.path.join(folder.name, "shim.sock")
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
shim = hook(native, client.Client(path), str(torch.__version__))
daemon, _ = listener.accept()
frames = FrameBuffer(FROM_SHIM)
def received():
    "the messages that have arrived since the last call"
    messages = []
    while select.select([daemon], [], [], 0)[0]:
        messages += frames.feed(daemon.recv(65536))
    return messages
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(64, 64)
def step():
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
profiled = torch._C._autograd._profiler_enabled
def in_thread(act):
    "what act() returns in another thread"
    results = []
    thread = threading.Thread(target=lambda: results.append(act()))
    thread.start()
    thread.join()
    return results[0]
all_found = {}
step()
def access_step():
    "whether the daemon's request begins an access step"
    daemon.sendall(encode({"type": "profile_ops"}))
    step()
    return profiled()
def repeated():
    "the further steps until the access step is repeated, and the messages that arrive after it"
    steps = 0
    while not profiled() and steps < 9:
        step()
        steps += 1
    step()
    messages = received()
    notes = [message["text"] for message in messages if message["type"] == "note"]
    counts = [message["count"] for message in messages if message["type"] == "accesses"]
    return {"steps": steps, "notes": notes, "counts": counts, "profiled at the end": profiled()}
"""

FORKS = """
found = {"begun": access_step()}
child = os.fork()
if child == 0:
    os._exit(10 + profiled())
found["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
found["parent"] = profiled()
all_found["forks"] = found | repeated()
"""

FORKS_ALWAYS = """
found = {"begun": access_step(), "steps": 0, "profiled": [], "notes": [], "counts": []}
while not found["counts"] and found["steps"] < 30:
    if profiled():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        found["profiled"].append(profiled())
    step()
    found["steps"] += 1
    messages = received()
    found["notes"] += [message["text"] for message in messages if message["type"] == "note"]
    found["counts"] += [message["count"] for message in messages if message["type"] == "accesses"]
found["profiled at the end"] = profiled()
all_found["forks always"] = found
"""

VALIDATES = """
former, op_accesses.FORWARDS_MAX = op_accesses.FORWARDS_MAX, 5
found = {"begun": access_step(), "profiled": []}
with torch.no_grad(), record_function("validation"):
    for _ in range(4):
        model(x)
        found["profiled"].append(profiled())
all_found["validates"] = found | repeated()
op_accesses.FORWARDS_MAX = former
"""

THREADS = """
for way, act in {
    "layer": lambda: model(x),
    "step": shim.step_ended,
    "fork": lambda: os.fork() or os._exit(0),
}.items():
    found = {"begun": access_step()}
    in_thread(shim.step_ended)
    found["there"], found["here"] = in_thread(profiled), profiled()
    act()
    found["after"] = profiled()
    all_found[f"threads, {way}"] = found | repeated()
"""

ENDED_THREAD = """
found = {"begun": in_thread(access_step)}
step()
all_found["ended thread"] = found | repeated()
"""

ALWAYS = """
runtime.ACCESS_STEPS_MAX = 2
former, op_accesses.FORWARDS_MAX = op_accesses.FORWARDS_MAX, 1
all_found["always"] = []
for _ in range(2):
    found = [access_step()]
    for _ in range(8):
        step()
        found.append(profiled())
    all_found["always"].append(found)
op_accesses.FORWARDS_MAX = former
"""

FAKE = """
from torch._subclasses.fake_tensor import FakeTensorMode
step()
with FakeTensorMode():
    fake = torch.nn.Linear(64, 64)
    shim.step_ended()
    for _ in range(2):
        fake(torch.ones(64, 64)).sum().backward()
        shim.step_ended()
all_found["fake"] = [shim.alive]
step()
all_found["fake"].append(shim.alive)
"""

INTERRUPTED = """
pipes = [os.pipe() for _ in range(2)]
def interrupt():
    raise KeyboardInterrupt
def epoch_fd(fd):
    taken.append(os.fstat(fd).st_ino)
taken = []
native.epoch_fd = epoch_fd
native.detach = interrupt
messages = encode({"type": "detach"}), encode({"type": "epoch_fd"})
socket.send_fds(daemon, [b"".join(messages)], [pipes[0][1]])
try: step()
except KeyboardInterrupt: found = {"interrupted": True}
step()
found["reconnected"] = bool(select.select([listener], [], [], 0)[0])
if found["reconnected"]:
    daemon, _ = listener.accept()
socket.send_fds(daemon, [encode({"type": "epoch_fd"})], [pipes[1][1]])
step()
found["right descriptor"] = taken == [os.fstat(pipes[1][1]).st_ino]
all_found["interrupted"] = found
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The results of each script; all scripts run in one process."""
    scripts = (
        FORKS + FORKS_ALWAYS + VALIDATES + THREADS + ENDED_THREAD + ALWAYS + FAKE + INTERRUPTED
    )
    seen: dict[str, Any] = shimmed(TRAINING + scripts + "print(json.dumps(all_found))")
    return seen


def check_repeated(found: dict[str, Any], *notes: str) -> None:
    """Check that the access step has been repeated, and that the shim has sent these notes."""
    assert found["begun"]
    assert found["steps"] > 0
    assert found["notes"] == [*notes]
    (count,) = found["counts"]
    assert count > 0
    assert not found["profiled at the end"]


def test_a_child_that_is_forked_in_an_access_step_is_not_profiled(found: dict[str, Any]) -> None:
    forks = found["forks"]
    assert forks["child"] == 10
    assert not forks["parent"]
    check_repeated(forks, FORK)


def test_a_training_that_forks_in_each_step_is_observed_nevertheless(
    found: dict[str, Any],
) -> None:
    forks = found["forks always"]
    assert forks["profiled"] == [False] * FORKED_ACCESS_STEPS_MAX + [True]
    check_repeated(forks)  # no note: each reason is noted once, and FORK was noted before


def test_an_access_step_ends_early_after_too_many_forwards(found: dict[str, Any]) -> None:
    assert found["validates"]["profiled"] == [True, True, False, False]
    check_repeated(found["validates"], TOO_LONG)


@pytest.mark.parametrize(("way", "notes"), [("layer", [OTHER_THREAD]), ("step", []), ("fork", [])])
def test_a_profiler_ends_in_its_own_thread_if_another_has_ended_the_step(
    found: dict[str, Any], way: str, notes: list[str]
) -> None:
    threads = found[f"threads, {way}"]
    assert (threads["there"], threads["here"], threads["after"]) == (False, True, False)
    check_repeated(threads, *notes)


def test_a_profiler_whose_thread_has_ended_delays_no_other(found: dict[str, Any]) -> None:
    check_repeated(found["ended thread"])


def test_access_steps_are_repeated_a_limited_number_of_times_for_one_request(
    found: dict[str, Any],
) -> None:
    assert found["always"] == [[True, False, True, *[False] * 6]] * 2


def test_steps_of_fake_tensors_do_not_count_as_another_allocator(found: dict[str, Any]) -> None:
    assert found["fake"] == [True, True]


def test_a_message_after_an_interrupt_gets_its_own_descriptor(found: dict[str, Any]) -> None:
    assert found["interrupted"] == {
        "interrupted": True,
        "reconnected": True,
        "right descriptor": True,
    }
