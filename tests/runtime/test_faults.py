"""Forks, kills, full disks and threads: what must hold when the world around a call is not kind."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

import lowbit as lb

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and reads /proc")

ELEMENTS = 1 << 20
SECONDS = 30  # after which a child counts as hung
STRAY = ".q.1.lowbit-tmp"


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = lb.get_num_threads()
    lb.set_num_threads(2)
    yield
    lb.set_num_threads(before)


def numbers(elements: int = ELEMENTS, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(elements, np.float32)


def serial_codes(x: np.ndarray) -> np.ndarray:
    """What quantize gives with one thread."""
    lb.set_num_threads(1)
    codes = lb.quantize(x).data
    lb.set_num_threads(2)
    return codes


def threads_alive() -> int:
    return len(os.listdir("/proc/self/task"))


# ---- children ------------------------------------------------------------------------------------------


def fork(work: Callable[[], bool]) -> int:
    """The pid of a child that runs `work`, and exits with 0 if it is true."""
    pid = os.fork()
    if pid == 0:
        _run_and_exit(work)
    return pid


def _run_and_exit(work: Callable[[], bool]) -> NoReturn:
    status = 2
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the default ends a child even inside a native call
        signal.alarm(SECONDS)
        status = 0 if work() else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def outcome(pid: int) -> str:
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "hung" if number == signal.SIGALRM else signal.Signals(number).name
    return {0: "right", 1: "wrong", 2: "raised"}[os.WEXITSTATUS(status)]


def quantizes_in_parallel(x: np.ndarray, expected: np.ndarray) -> Callable[[], bool]:
    """A child's work: the same codes again, with a worker thread of its own."""

    def work() -> bool:
        alone = threads_alive() == 1
        right = np.array_equal(lb.quantize(x).data, expected)
        return alone and right and threads_alive() == 2 and lb.get_num_threads() == 2

    return work


# ---- fork ----------------------------------------------------------------------------------------------


def test_children_forked_after_a_parallel_region_work_100_of_100():
    x = numbers()
    expected = serial_codes(x)
    outcomes = []
    for _ in range(100):
        assert np.array_equal(lb.quantize(x).data, expected)
        outcomes.append(outcome(fork(quantizes_in_parallel(x, expected))))
    assert outcomes == ["right"] * 100


def test_parent_still_works_after_its_children():
    x = numbers()
    expected = serial_codes(x)
    for _ in range(5):
        assert outcome(fork(quantizes_in_parallel(x, expected))) == "right"
        assert np.array_equal(lb.quantize(x).data, expected)


def test_grandchildren_work():
    x = numbers()
    expected = serial_codes(x)

    def work() -> bool:
        right = quantizes_in_parallel(x, expected)
        return right() and outcome(fork(right)) == "right" and np.array_equal(lb.quantize(x).data, expected)

    lb.quantize(x)
    assert outcome(fork(work)) == "right"


def test_children_forked_by_a_thread_other_than_main_work():
    x = numbers()
    expected = serial_codes(x)

    def fork_here() -> list[str]:
        lb.quantize(x)
        return [outcome(fork(quantizes_in_parallel(x, expected))) for _ in range(20)]

    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(fork_here).result() == ["right"] * 20


def test_children_forked_while_another_thread_is_in_a_parallel_region_work():
    x = numbers()
    expected = serial_codes(x)
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            lb.quantize(x)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        outcomes = [outcome(fork(quantizes_in_parallel(x, expected))) for _ in range(30)]
    finally:
        stop.set()
        busy.join()
    assert outcomes == ["right"] * 30


def _codes(seed: int) -> np.ndarray:
    return lb.quantize(numbers(seed=seed)).data


def test_multiprocessing_with_fork_works():
    expected = [_codes(seed) for seed in range(6)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map_async(_codes, range(6)).get(timeout=SECONDS)
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a, b)


# ---- killed while saving -------------------------------------------------------------------------------


def two_tensors() -> tuple[lb.QuantizedTensor, lb.QuantizedTensor]:
    """A pair of different length and kind, so that no mix of their files passes for either."""
    return lb.quantize(numbers(4 << 20, 1)), lb.quantize(numbers(6 << 20, 2), "int4", group_size=32)


def save_for_ever(pair: tuple[lb.QuantizedTensor, lb.QuantizedTensor], path: Path) -> Callable[[], bool]:
    def work() -> bool:
        while True:
            for q in pair:
                q.save(path)

    return work


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert outcome(pid) == "SIGKILL"


def test_killed_at_any_moment_of_a_save_the_file_is_the_old_or_the_new_tensor(tmp_path):
    pair, path, rng = two_tensors(), tmp_path / "q", random.Random(0)
    pair[0].save(path)
    strays = 0
    for _ in range(40):
        pid = fork(save_for_ever(pair, path))
        time.sleep(rng.uniform(0.0, 0.03))
        kill(pid)
        assert lb.QuantizedTensor.load(path) in pair
        assert set(os.listdir(tmp_path)) <= {"q", STRAY}  # each save removes what the one before it left
        strays += (tmp_path / STRAY).exists()
    assert strays, "no kill hit a save: the test showed nothing"
    pair[0].save(path)
    assert os.listdir(tmp_path) == ["q"]


def test_readers_beside_a_writer_always_see_a_whole_tensor(tmp_path):
    pair, path = two_tensors(), tmp_path / "q"
    pair[0].save(path)
    pid = fork(save_for_ever(pair, path))
    seen = set()
    try:
        deadline = time.monotonic() + SECONDS / 2
        while len(seen) < 2 and time.monotonic() < deadline:
            for _ in range(10):
                seen.add(pair.index(lb.QuantizedTensor.load(path)))
    finally:
        kill(pid)
    assert seen == {0, 1}


# ---- disks that are full, and other failures of a save -------------------------------------------------


def old_file(directory: Path) -> bytes:
    """Saves a small tensor as `q`; its bytes are what must survive."""
    lb.quantize(numbers(1000)).save(directory / "q")
    return (directory / "q").read_bytes()


def assert_only_the_old_file(directory: Path, old: bytes) -> None:
    assert os.listdir(directory) == ["q"]
    assert (directory / "q").read_bytes() == old


@pytest.mark.parametrize("limit", [0, 1, 8, 100, 4096, 1 << 20], ids="{}-bytes".format)
def test_file_size_limit_raises_and_keeps_the_old_file(limit, tmp_path):
    old = old_file(tmp_path)
    large = lb.quantize(numbers(4 << 20))

    def work() -> bool:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            large.save(tmp_path / "q")
        except OSError as error:
            return error.errno == errno.EFBIG and os.listdir(tmp_path) == ["q"]
        return False

    assert outcome(fork(work)) == "right"
    assert_only_the_old_file(tmp_path, old)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, where this process may mount one."""
    directory = tmp_path / "disk"
    directory.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    try:
        done = subprocess.run(["mount", *options], capture_output=True, text=True, timeout=10)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"mount is not permitted: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True, timeout=10)


def test_full_disk_raises_and_keeps_the_old_file(tiny_disk):
    old = old_file(tiny_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        lb.quantize(numbers(4 << 20)).save(tiny_disk / "q")
    assert caught.value.errno == errno.ENOSPC
    assert_only_the_old_file(tiny_disk, old)
    lb.quantize(numbers(2000)).save(tiny_disk / "q")  # and there is room again for what fits
    assert lb.QuantizedTensor.load(tiny_disk / "q").shape == (2000,)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "bad"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_save_that_fails_late_or_is_interrupted_keeps_the_old_file(step, error, tmp_path, monkeypatch):
    old = old_file(tmp_path)

    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        lb.quantize(numbers(5000)).save(tmp_path / "q")
    monkeypatch.undo()
    assert_only_the_old_file(tmp_path, old)


# ---- power cuts: what is synced, and when ---------------------------------------------------------------


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and renamed from here on, by the names of files and folders: "sync a", "a -> b"."""
    steps: list[str] = []
    sync = os.fsync

    def noted_sync(handle: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")
        sync(handle)

    def noted(rename: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def instead(a: Path, b: Path) -> None:
            steps.append(f"{Path(a).name} -> {Path(b).name}")
            rename(a, b)

        return instead

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted(os.replace))
    monkeypatch.setattr(os, "rename", noted(os.rename))
    return steps


def test_data_reach_the_disk_before_the_name_does_and_the_name_before_the_call_ends(tmp_path, order):
    """Renamed first and synced later, a power cut could leave the name on an empty file."""
    lb.quantize(numbers(5000)).save(tmp_path / "q")
    assert order == [f"sync {STRAY}", f"{STRAY} -> q", f"sync {tmp_path.name}"]


def test_all_bytes_are_with_the_system_before_they_are_synced(tmp_path, monkeypatch):
    sizes, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (sizes.append(os.fstat(handle).st_size), sync(handle))[1])
    lb.quantize(numbers(100)).save(tmp_path / "q")
    assert sizes[0] == (tmp_path / "q").stat().st_size


def test_a_shard_is_synced_then_named_then_its_folder_is_synced(tmp_path, order):
    from lowbit.formats.safetensors.writer import ShardWriter, Stored

    with ShardWriter(tmp_path / "s", [Stored("x", "F32", (1000,))], {}) as shard:
        shard.write("x", numbers(1000))
        assert not order
    temporary = order[0].removeprefix("sync ")
    assert order == [f"sync {temporary}", f"{temporary} -> s", f"sync {tmp_path.name}"]


@pytest.mark.parametrize("replacing", [False, True])
def test_a_checkpoint_is_synced_before_it_is_named_and_its_name_after(replacing, tmp_path, order):
    from lowbit.formats.compressed_tensors.convert import quantize_checkpoint
    from lowbit.runtime.files.container import write_arrays

    write_arrays(tmp_path / "f.safetensors", {"a.up_proj.weight": numbers(64 * 128).reshape(64, 128)}, {})
    if replacing:
        quantize_checkpoint(tmp_path / "f.safetensors", tmp_path / "q", "W8A16")
    order.clear()
    quantize_checkpoint(tmp_path / "f.safetensors", tmp_path / "q", "W4A16", overwrite=replacing)
    aside = ["q -> .q.old"] if replacing else []
    assert order[-3 - len(aside) :] == ["sync .q.partial", *aside, ".q.partial -> q", f"sync {tmp_path.name}"]
    written = order[: -3 - len(aside)]
    for i, step in enumerate(written):  # each file in it on its own: synced, named, and the folder synced
        if " -> " in step:
            assert written[i - 1] == f"sync {step.partition(' -> ')[0]}"
            assert written[i + 1] == "sync .q.partial"
    assert [step.rpartition(" ")[2] for step in written if " -> " in step] == [
        ".lowbit-manifest.json", "model.safetensors", ".lowbit-manifest.json", "config.json",
    ]  # fmt: skip


def test_a_checkpoint_that_is_put_back_after_a_killed_commit_is_synced(tmp_path, order):
    from lowbit.formats.compressed_tensors.convert import quantize_checkpoint
    from lowbit.runtime.files.container import write_arrays

    write_arrays(tmp_path / "f.safetensors", {"a.up_proj.weight": numbers(64 * 128).reshape(64, 128)}, {})
    quantize_checkpoint(tmp_path / "f.safetensors", tmp_path / "q", "W8A16")
    (tmp_path / "q").rename(tmp_path / ".q.old")
    order.clear()
    quantize_checkpoint(tmp_path / "f.safetensors", tmp_path / "q", "W4A16", overwrite=True)
    assert order[:2] == [".q.old -> q", f"sync {tmp_path.name}"]


def test_the_data_of_an_onnx_model_reach_the_disk_before_the_model_does(tmp_path, order):
    made = pytest.importorskip("onnx_models")
    from lowbit.formats.onnx.graph import Graph

    Graph.load(made.matmul()).save(tmp_path / "a.onnx", external_data=True)
    (data,) = (f.name for f in tmp_path.glob("a-*.data"))
    manifest = [
        "sync ..lowbit-manifest.json.1.lowbit-tmp",
        "..lowbit-manifest.json.1.lowbit-tmp -> .lowbit-manifest.json",
    ]
    assert order == [
        *manifest, "sync .a.onnx.partial", "sync data", f"data -> {data}", "sync a.onnx",
        f"{data} -> {data}", f"sync {tmp_path.name}", "a.onnx -> a.onnx", f"sync {tmp_path.name}",
    ]  # fmt: skip


# ---- threads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "int4", "int16"])
def test_calls_from_eight_threads_at_once_give_the_codes_of_one(dtype):
    inputs = [numbers(ELEMENTS - seed, seed) for seed in range(8)]
    start = threading.Barrier(8)

    def quantize_and_back(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        start.wait(SECONDS)
        q = lb.quantize(x, dtype)
        return q.data, q.dequantize()

    lb.set_num_threads(1)
    expected = [lb.quantize(x, dtype) for x in inputs]
    lb.set_num_threads(2)
    with ThreadPoolExecutor(8) as executor:
        found = list(executor.map(quantize_and_back, inputs))
    for (codes, values), q in zip(found, expected, strict=True):
        assert np.array_equal(codes, q.data)
        assert np.array_equal(values, q.dequantize())


def test_threads_that_share_params_share_no_state():
    """Params keep what kernels prepare from them: eight threads meet there the first time at once."""
    x = numbers(5 * 1000).reshape(5, 1000)
    for _ in range(20):
        params = lb.QuantizationParams("int8", scale=np.float32([0.01, 0.02, 0.03, 0.04, 0.05]), axis=0)
        start = threading.Barrier(8)

        def codes(_: int, params=params, start=start) -> bytes:
            start.wait(SECONDS)
            return lb.quantize(x, params=params).data.tobytes()

        with ThreadPoolExecutor(8) as executor:
            assert len(set(executor.map(codes, range(8)))) == 1


def test_python_threads_run_during_a_big_call():
    """With a switch interval of an hour, another thread moves only when a call lets go of the GIL itself."""
    x = np.ones(1 << 25, np.float32)
    out = lb.quantize(x, "int16")
    count, stop = 0, threading.Event()

    def keep_counting() -> None:
        nonlocal count
        while not stop.is_set():
            count += 1
            time.sleep(0.0001)

    interval = sys.getswitchinterval()
    counting = threading.Thread(target=keep_counting)
    progress = {}
    try:
        sys.setswitchinterval(3600.0)
        counting.start()
        for name, call in {
            "quantize": lambda: lb.quantize(x, params=out.params, out=out),
            "dequantize": lambda: out.dequantize(out=x),
        }.items():
            for _ in range(20):  # on a busy machine the other thread may get little of a call, but not of all of them
                before = count
                call()
                progress[name] = count - before
                if progress[name] >= 3:
                    break
        before = count
        sum(range(1 << 20))  # a control: this one never lets go
        progress["control"] = count - before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        counting.join()
    assert progress["quantize"] >= 3, progress
    assert progress["dequantize"] >= 3, progress
    assert progress["control"] <= 1, progress


# ---- the end of the interpreter --------------------------------------------------------------------------

DAEMONS = """
import threading, numpy as np, lowbit as lb
lb.set_num_threads(2)
x, a = np.ones(1 << 16, np.float32), np.ones((128, 256), np.float32)
q, w, bits = lb.quantize(a), lb.prepack(lb.quantize(a.T.copy())), lb.quantize(a, "binary")
layer, calibrator = lb.QuantizedLinear(a, group_size=32, dtype="int4"), lb.Calibrator()
calls = [
    lambda: lb.quantize(x), lambda: lb.qmatmul(q, w), lambda: lb.binary_matmul(bits, bits), lambda: layer(a),
    lambda: calibrator.add(x),
    lambda: lb.conv2d_integer(np.ones((1, 4, 64, 64), np.int8), np.ones((4, 4, 3, 3), np.int8)),
]
begun = threading.Barrier(len(calls) + 1)
def forever(call):
    call()
    begun.wait()
    while True:
        call()
for call in calls:
    threading.Thread(target=forever, args=(call,), daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize("attempt", range(5))
def test_daemon_threads_inside_native_calls_do_not_spoil_the_exit(attempt: int) -> None:
    done = subprocess.run([sys.executable, "-c", DAEMONS], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


# ---- out of memory ---------------------------------------------------------------------------------------

# Each call allocates within its tasks. It runs with more and more room, then with all there is: on two threads, and in
# a forked child.
OUT_OF_MEMORY = """
import os, resource, sys, numpy as np, lowbit as lb
from lowbit import _core

lb.set_num_threads(2)

def pooling():
    x = np.ones((4, 1, 1 << 22, 1), np.uint8)
    out = np.zeros_like(x)
    window = _core.Window(x.shape, (1, 3), padding=(0, 1, 0, 1))
    codes = _core.CodeParams(_core.Code.u8, 1.0, 0, 0, 255)
    plan = _core.AveragePoolPlan(window, codes, codes, False)
    def call():
        out[...] = 0
        plan.run(x, out)
        return out.all()
    return call

def ranges():
    x = np.ones((4, 1 << 20), np.float32)
    layout = _core.Granularity(_core.GranularityKind.channel, 4, 1 << 20, 1, 1)
    lo, hi = np.zeros(1 << 20, np.float32), np.zeros(1 << 20, np.float32)
    return lambda: _core.RangePlan(_core.Element.f32, layout).run(x, lo, hi) == 0 and lo.all() and hi.all()

def sketches():
    x = np.ones((1 << 16, 16), np.float32)
    layout = _core.Granularity(_core.GranularityKind.channel, 1 << 16, 16, 1, 1)
    def call():
        kept = _core.Sketches(16, 1 << 18, 0)
        return kept.add(x, _core.Element.f32, layout, False) == 0
    return call

def mapped():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[0]) * resource.getpagesize()

call = globals()[sys.argv[1]]()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
warm = np.ones(1 << 20, np.float32)
lb.quantize(warm)  # starts the worker
failed = 0
for room in (0, 1 << 16, 1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 23, 1 << 24, 1 << 25, 1 << 26):
    resource.setrlimit(resource.RLIMIT_AS, (mapped() + room, hard))
    try:
        assert call(), "wrong"
    except MemoryError:
        failed += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
assert failed, "there was always enough"
threads = len(os.listdir("/proc/self/task"))
lb.set_num_threads(1)
expected = call(), lb.quantize(warm).data.copy()
lb.set_num_threads(2)
assert call() and (lb.quantize(warm).data == expected[1]).all() and len(os.listdir("/proc/self/task")) == threads
pid = os.fork()
if pid == 0:
    os._exit(0 if call() and (lb.quantize(warm).data == expected[1]).all() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child"
"""


@pytest.mark.skipif("LOWBIT_SANITIZED" in os.environ, reason="sanitizers map terabytes")
@pytest.mark.parametrize("which", ["pooling", "ranges", "sketches"])
def test_out_of_memory_is_an_error_like_any_other(which: str) -> None:
    command = [sys.executable, "-c", OUT_OF_MEMORY, which]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


NO_THREADS = """
import os, resource, numpy as np, lowbit as lb
lb.set_num_threads(1)
x = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
q = lb.quantize(x)
expected = q.data.copy()
lb.set_num_threads(8)
before = len(os.listdir("/proc/self/task"))  # other libraries have threads, too
with open("/proc/self/statm") as f:
    mapped = int(f.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (4 << 20), resource.RLIM_INFINITY))  # less than a thread's stack
assert (lb.quantize(x, params=q.params, out=q).data == expected).all()
assert len(os.listdir("/proc/self/task")) == before
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert (lb.quantize(x, params=q.params, out=q).data == expected).all()
assert len(os.listdir("/proc/self/task")) == before + 7
"""


@pytest.mark.skipif("LOWBIT_SANITIZED" in os.environ, reason="sanitizers map terabytes")
def test_threads_that_cannot_be_started_are_done_without() -> None:
    done = subprocess.run([sys.executable, "-c", NO_THREADS], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
