"""Batches on their way to a device: what arrives is right, and stays as it was, whenever the device does its copies."""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_device import SimulatedDevice, SimulatedError, SimulatedEvent

from precompile.loading.devices.async_mover import AsyncMover
from precompile.loading.devices.device import PlainMover, mover_for
from precompile.loading.devices.leaves import map_leaves
from precompile.loading.reading.collate import Padded

IMAGE_BYTES = 2 * 3 * 4 * 5
FRAMES_BYTES = 2 * 2 * 9 * 2
Expected = dict[str, Any]


def expected_batch(number: int) -> Expected:
    """Two samples in ordinary memory; the images are channels_last."""
    rng = np.random.default_rng(number)
    lengths = rng.integers(1, 10, 2)
    frames = rng.integers(0, 100, (2, 2, int(lengths.max()))).astype(np.float16)
    return {
        "image": torch.from_numpy(rng.integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)).permute(0, 3, 1, 2),
        "frames": Padded(torch.from_numpy(frames), torch.from_numpy(lengths)),
        "label": torch.full((2,), number),
        "text": [f"sample {number}", "ä"],
    }


def tensors_of(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_leaves(tree, torch.Tensor, found.append)
    return found


def fill(buffer: np.ndarray, start: int, like: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes put into a buffer, as a view of it with the same strides."""
    flat = like.as_strided((like.numel(),), (1,)).numpy().view(np.uint8)
    buffer[start : start + len(flat)] = flat
    return torch.from_numpy(buffer)[start : start + len(flat)].view(like.dtype).as_strided(like.shape, like.stride())


@dataclass(repr=False, eq=False)
class Training:
    """A Loader and its consumer on a simulated device, step by step, in whatever order they are called."""

    schedule: random.Random
    prefetch: int = 3
    group: int = 1
    """Batches that are filled at once and share buffers."""
    share_kept: float = 0.5
    num_filled: int = 0
    filled: deque[tuple[Any, Expected]] = field(default_factory=deque)
    sent: deque[tuple[Any, Expected]] = field(default_factory=deque)
    kept: list[tuple[Any, Expected, str]] = field(default_factory=list)
    reads: list[tuple[list[torch.Tensor], torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = SimulatedDevice(self.schedule)
        self.mover = AsyncMover(self.device)
        self.pools = [self.mover.buffers(self.group * size) for size in (IMAGE_BYTES, FRAMES_BYTES)]

    def fill(self) -> None:
        if len(self.filled) + len(self.sent) >= self.prefetch * self.group:
            return
        images, frames = (pool.take() for pool in self.pools)
        for slot in range(self.group):
            expected = expected_batch(self.num_filled)
            self.num_filled += 1
            batch = {
                **expected,
                "image": fill(images, slot * IMAGE_BYTES, expected["image"]),
                "frames": Padded(
                    fill(frames, slot * FRAMES_BYTES, expected["frames"].data), expected["frames"].lengths
                ),
            }
            self.filled.append((batch, expected))

    def send(self) -> None:
        if self.filled:
            batch, expected = self.filled.popleft()
            self.sent.append((self.mover.send(batch), expected))

    def receive(self) -> None:
        if not self.sent:
            return
        sent, expected = self.sent.popleft()
        self.device.stream = self.schedule.choice(["main", "other"])
        batch = sent.receive()
        self.read(batch, expected)
        if self.schedule.random() < self.share_kept:
            self.kept.append((batch, expected, self.device.stream))

    def read(self, batch: Any, expected: Expected) -> None:
        assert batch["text"] == expected["text"]
        assert type(batch["frames"]) is Padded
        for tensor, wanted in zip(tensors_of(batch), tensors_of(expected), strict=True):
            assert (tensor.dtype, tensor.shape, tensor.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
            self.reads.append((self.device.read(tensor), wanted))

    def read_again(self) -> None:
        if self.kept:
            batch, expected, self.device.stream = self.schedule.choice(self.kept)
            self.read(batch, expected)

    def drop(self) -> None:
        if self.kept:
            self.kept.pop(self.schedule.randrange(len(self.kept)))

    def drop_unread(self) -> None:
        if self.sent and self.schedule.random() < 0.1:
            self.sent.popleft()

    def work(self) -> None:
        self.device.run_some(self.schedule.randrange(8))

    def finish(self) -> None:
        for batch, expected, stream in self.kept:
            self.device.stream = stream
            self.read(batch, expected)
        self.device.run_all()
        for found, wanted in self.reads:
            assert torch.equal(found[0], wanted)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    prefetch=st.integers(1, 4),
    group=st.integers(1, 3),
    share_kept=st.sampled_from([0.0, 0.3, 1.0]),
    pace=st.sampled_from([1, 4, 20]),
)
def test_what_a_consumer_gets_is_right_and_stays_so(
    seed: int, prefetch: int, group: int, share_kept: float, pace: int
) -> None:
    """pace: how often the device gets a turn; a slow one is always far behind."""
    training = Training(random.Random(seed), prefetch, group, share_kept)
    steps = [training.fill, training.send, training.receive]
    steps = [*steps * 3, training.read_again, training.drop, training.drop_unread, *[training.work] * pace]
    for _ in range(300):
        training.schedule.choice(steps)()
    training.finish()
    assert len(training.reads) > 4
    # Those that are filled or being filled, and two that wait for their copy.
    assert all(len(pool) <= prefetch + 3 for pool in training.pools)


def test_buffers_are_reused() -> None:
    training = Training(random.Random(0))
    addresses = set()
    take = training.pools[0].take

    def take_noted() -> np.ndarray:
        buffer = take()
        addresses.add(buffer.ctypes.data)
        return buffer

    training.pools[0].take = take_noted
    for _ in range(40):
        for step in (training.fill, training.send, training.receive):
            step()
    training.finish()
    assert training.num_filled == 40
    assert len(addresses) == len(training.pools[0]) <= 3


def test_a_device_that_does_not_copy_holds_the_reading_up() -> None:
    """Nothing runs on the device but what `take` waits for."""
    training = Training(random.Random(0), prefetch=1, share_kept=1.0)
    for _ in range(30):
        training.fill()
        training.send()
        training.sent.clear()
    assert training.num_filled == 30
    assert [len(pool) for pool in training.pools] == [2, 2]
    assert not training.device.is_idle()


def test_batches_are_not_sent_far_ahead_of_the_device() -> None:
    """Batches are dropped at once, but the device has not yet read them: their memory must not grow without bound."""
    training = Training(random.Random(0), prefetch=1, share_kept=0.0)
    for _ in range(50):
        training.fill(), training.send(), training.receive()
    assert not training.device.is_idle()
    assert sum(len(block.memory) == IMAGE_BYTES for block in training.device.blocks) <= 8
    training.finish()


def test_to_receive_is_not_to_wait() -> None:
    """However many batches, nothing has run on the device."""
    training = Training(random.Random(0), prefetch=2, group=10)
    for step in (training.fill, training.send, training.receive):
        for _ in range(10):
            step()
    assert len(training.reads) >= 40
    assert [found for found, _ in training.reads if found] == []
    training.finish()


@pytest.mark.parametrize("tensor", ["image", "frames", "label"])
def test_a_copy_that_fails_is_an_error_and_no_harm(tensor: str) -> None:
    training = Training(random.Random(1), prefetch=2)
    training.fill(), training.send()
    training.fill()
    training.device.fails_in = ["image", "frames", "label"].index(tensor)
    with pytest.raises(SimulatedError, match="out of memory on the device"):
        training.send()
    training.device.fails_in = None
    for _ in range(20):
        training.fill(), training.send(), training.receive()
    training.finish()


def test_with_real_threads() -> None:
    """One thread fills and sends, one receives, the device works in a third; each as fast as it can."""
    training = Training(random.Random(3), prefetch=4, share_kept=0.2)
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            training.device.run_some(5)

    def fill_and_send() -> tuple[Any, Expected]:
        training.fill()
        batch, expected = training.filled.popleft()
        return training.mover.send(batch), expected

    device = threading.Thread(target=work)
    device.start()
    try:
        with ThreadPoolExecutor(1) as background:
            flying = deque(background.submit(fill_and_send) for _ in range(3))
            for number in range(400):
                training.sent.append(flying.popleft().result())
                training.receive()
                training.drop()
                if number < 397:
                    flying.append(background.submit(fill_and_send))
    finally:
        ended.set()
        device.join()
    training.finish()
    assert training.num_filled == 400


def test_senders_in_several_threads_share_a_buffer() -> None:
    training = Training(random.Random(4), prefetch=1, group=6)
    with ThreadPoolExecutor(3) as background:
        for _ in range(30):
            training.fill()
            filled = [training.filled.popleft() for _ in range(6)]
            sent = list(background.map(training.mover.send, [batch for batch, _ in filled]))
            training.sent.extend((each, expected) for each, (_, expected) in zip(sent, filled))
            del filled
            training.work()
            for _ in range(6):
                training.receive()
    training.finish()
    assert all(len(pool) <= 4 for pool in training.pools)


def test_the_event_that_is_noted_last_need_not_be_the_last() -> None:
    """Two threads send from one buffer: the first to queue its copy is the last to note its event."""

    class Hesitant(SimulatedDevice):
        def record(self) -> SimulatedEvent:
            event = super().record()
            if threading.current_thread() is first:
                recorded.set()
                assert other_ended.wait(60)
            return event

    device, recorded, other_ended = Hesitant(random.Random(0)), threading.Event(), threading.Event()
    mover = AsyncMover(device)
    pool = mover.buffers(16)
    batches = [half.view(torch.int64) for half in torch.from_numpy(pool.take()).split(8)]
    address = batches[0].data_ptr()
    first = threading.Thread(target=mover.send, args=(batches[0],))
    first.start()
    assert recorded.wait(60)
    mover.send(batches[1])
    other_ended.set()
    first.join()
    del batches
    device.run_some(2)
    assert pool.take().ctypes.data != address
    device.run_all()
    assert pool.take().ctypes.data == address


def sent_and_received(batch: Any) -> Any:
    device = SimulatedDevice(random.Random(0))
    mover = AsyncMover(device)
    arrived = mover.send(batch).receive()
    device.run_all()
    return arrived


ODD_TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "a number": lambda: torch.tensor(3),
    "bool": lambda: torch.tensor([True, False]),
    "bfloat16": lambda: torch.arange(6).to(torch.bfloat16).view(2, 3),
    "complex": lambda: torch.complex(torch.ones(3), torch.arange(3.0)),
    "conjugated": lambda: torch.complex(torch.ones(3), torch.arange(3.0)).conj(),
    "negated": lambda: torch._neg_view(torch.arange(3.0)),
    "empty": lambda: torch.empty(0, 3),
    "every second": lambda: torch.arange(20).view(4, 5)[::2, ::2],
    "expanded": lambda: torch.arange(3).expand(4, 3),
    "overlapping": lambda: torch.arange(6).as_strided((4, 3), (1, 1)),
    "transposed": lambda: torch.arange(24).view(2, 3, 4).transpose(0, 2),
    "axes of one": lambda: torch.arange(6).as_strided((1, 2, 1, 3), (100, 3, 7, 1)),
    "from the middle": lambda: torch.arange(20)[7:13],
    "requires grad": lambda: torch.ones(3, requires_grad=True),
    "a parameter": lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False),
    "sparse": lambda: torch.eye(3).to_sparse(),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_TENSORS)
def test_any_tensor_arrives(name: str) -> None:
    tensor = ODD_TENSORS[name]()
    (arrived,) = sent_and_received((tensor,))
    assert (type(arrived), arrived.dtype, arrived.shape) == (type(tensor), tensor.dtype, tensor.shape)
    assert (arrived.layout, arrived.requires_grad) == (tensor.layout, tensor.requires_grad)
    assert torch.equal(arrived.to_dense(), tensor.to_dense())


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_strides_of_dense_tensors_are_kept(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    axes = data.draw(st.permutations(range(len(shape))))
    tensor = torch.randn(shape).permute(axes)
    arrived = sent_and_received(tensor)
    assert arrived.stride() == tensor.stride()
    assert torch.equal(arrived, tensor)


def test_the_form_of_a_batch_is_kept() -> None:
    batch = {
        "a": (torch.zeros(2), ["x", "y"], 3),
        "b": [torch.ones(1), {"c": None}],
        "d": Padded(torch.ones(2, 3), torch.ones(2)),
    }
    arrived = sent_and_received(batch)
    assert repr(arrived) == repr(batch)
    assert type(arrived["d"]) is Padded
    assert all(got is not given for got, given in zip(tensors_of(arrived), tensors_of(batch), strict=True))


def test_what_is_not_a_buffer_may_change_after_it_was_sent() -> None:
    device = SimulatedDevice(random.Random(0))
    label = torch.arange(5)
    sent = AsyncMover(device).send(label)
    label.zero_()
    arrived = sent.receive()
    device.run_all()
    assert arrived.tolist() == [0, 1, 2, 3, 4]


def test_buffers_of_a_dropped_pool_are_still_sent_right() -> None:
    """As when a batch needs larger buffers than the one before, which is still on its way."""
    device = SimulatedDevice(random.Random(0))
    mover = AsyncMover(device)
    pool = mover.buffers(100)
    batch = fill(pool.take(), 0, torch.arange(10))
    del pool
    arrived = mover.send(batch).receive()
    device.run_all()
    assert torch.equal(arrived, torch.arange(10))


def test_the_cpu_gets_the_very_batch() -> None:
    mover = mover_for("cpu")
    batch = {"image": torch.ones(3), "text": ["a"]}
    assert mover.device == torch.device("cpu")
    assert mover.send(batch).receive() is batch
    buffer = mover.buffers(64).take()
    assert (buffer.dtype, buffer.shape) == (np.uint8, (64,))


def test_other_devices_get_a_copy() -> None:
    arrived = PlainMover(torch.device("meta")).send(expected_batch(0)).receive()
    assert [tensor.device.type for tensor in tensors_of(arrived)] == ["meta"] * 4
    assert arrived["image"].is_contiguous(memory_format=torch.channels_last)
    assert arrived["text"] == expected_batch(0)["text"]


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "", 1.5, None, ["cpu"]])
def test_what_is_no_device_is_refused(device: Any) -> None:
    with pytest.raises(ValueError, match=r"device must be one that torch knows, such as 'cpu', .* got device="):
        mover_for(device)


def test_a_device_without_data_is_refused() -> None:
    with pytest.raises(ValueError, match="device must hold data, got device='meta'"):
        mover_for("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_missing_gpu_is_named_with_torchs_reason(device: str) -> None:
    with pytest.raises(RuntimeError) as reason:
        torch.empty(1, device=device)
    with pytest.raises(RuntimeError, match=f"device='{device}' cannot be used here: ") as raised:
        mover_for(torch.device(device))
    assert str(reason.value).split("\n")[0].strip() in str(raised.value)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is one")
@pytest.mark.parametrize("device", ["mps", "xpu", "hpu"])
def test_other_missing_devices_are_named(device: str) -> None:
    with pytest.raises(RuntimeError, match=f"device='{device}' cannot be used here: ."):
        mover_for(device)


def test_a_forked_process_is_told_that_it_cannot() -> None:
    training = Training(random.Random(0))
    training.fill(), training.send(), training.fill()
    uses: list[Callable[[], Any]] = [
        training.mover.check_process,
        training.pools[0].take,
        training.send,
        training.receive,
        lambda: training.mover.buffers(8),
    ]
    child = os.fork()
    if child == 0:
        try:
            for use in uses:
                with pytest.raises(RuntimeError, match=r"cannot be used in a forked process.*`spawn`.*='cpu'"):
                    use()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    training.mover.check_process()
    training.send(), training.receive(), training.receive()
    assert len(training.reads) == 8
    training.finish()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu() -> None:
    mover = mover_for("cuda")
    pool = mover.buffers(IMAGE_BYTES)
    kept = []
    for number in range(100):
        expected = expected_batch(number)
        batch = {**expected, "image": fill(pool.take(), 0, expected["image"])}
        torch.cuda._sleep(1_000_000)
        arrived = mover.send(batch).receive()
        assert arrived["image"].is_contiguous(memory_format=torch.channels_last)
        kept.append((map_leaves(arrived, torch.Tensor, torch.clone), expected))
    for arrived, expected in kept:
        for tensor, wanted in zip(tensors_of(arrived), tensors_of(expected), strict=True):
            assert torch.equal(tensor.cpu(), wanted)
