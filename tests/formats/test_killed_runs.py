"""Runs that are killed before any of the calls that change a folder: what is there afterwards, and after the next run.

A child process is killed in turn before its first, second, ... such call. At every moment the target is the old one or
the new one, and the next run leaves nothing behind but the new one.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from lowbit.formats.compressed_tensors.convert import quantize_checkpoint
from lowbit.models import Recipe, WeightRecipe
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.files.container import read_arrays, write_arrays

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")

STEPS = ("mkdir", "rmdir", "rename", "replace", "unlink", "fsync")
SECONDS = 60  # after which a child counts as hung


def killed_before(step: int, work: Callable[[], Any], steps: tuple[str, ...] = STEPS) -> str:
    """Runs `work` in a child that is killed before its step-th call of one of `steps`; "" if it ends before that, else
    the name of the call."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            count = 0

            def counted(name: str) -> Callable[..., Any]:
                call = getattr(os, name)

                def instead(*args: Any, **options: Any) -> Any:
                    nonlocal count
                    count += 1
                    if count == step:
                        os.write(tell, name.encode())
                        os.kill(os.getpid(), signal.SIGKILL)
                    return call(*args, **options)

                return instead

            for name in steps:
                setattr(os, name, counted(name))
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(tell)
    name = os.read(told, 100).decode()
    os.close(told)
    _, status = os.waitpid(pid, 0)
    if name:
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
    else:
        assert status == 0, "the child hung or failed"
    return name


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def listed(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir())


# ---- a file -------------------------------------------------------------------------------------------


def test_a_file_is_old_or_new_and_the_next_write_removes_what_was_left(tmp_path):
    old, new = ({"a": np.full(3000, value, np.float32)} for value in (1, 2))
    seen = []
    for step in range(1, 100):
        write_arrays(tmp_path / "q", old, {})
        assert listed(tmp_path) == ["q"], seen
        called = killed_before(step, lambda: write_arrays(tmp_path / "q", new, {}))
        if not called:
            break
        seen.append(called)
        assert read_arrays(tmp_path / "q")[0]["a"][0] in (1, 2)
        assert len(listed(tmp_path)) <= 2
    assert {"fsync", "replace"} <= set(seen)
    write_arrays(tmp_path / "q", new, {})
    assert listed(tmp_path) == ["q"]


def test_a_file_that_is_being_written_is_not_taken_for_a_left_one(tmp_path):
    """Two writers at once have two temporary files; each renames its own."""
    from lowbit.runtime.files.atomic import written_whole

    with written_whole(tmp_path / "q") as first:
        with written_whole(tmp_path / "q") as second:
            assert len(listed(tmp_path)) == 2
            second.write("second")
        first.write("first")
    assert contents(tmp_path) == {"q": b"first"}


@pytest.mark.parametrize("kind", ["link", "folder", "fifo", "locked"])
def test_what_is_not_a_left_file_is_not_removed(kind, tmp_path):
    import fcntl

    from lowbit.runtime.files.atomic import written_whole

    left = tmp_path / ".q.1.lowbit-tmp"
    (tmp_path / "precious").write_text("x")
    handle = None
    if kind == "link":
        left.symlink_to("precious")
    elif kind == "folder":
        left.mkdir()
    elif kind == "fifo":
        os.mkfifo(left)
    else:
        left.write_text("x")
        handle = os.open(left, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    with written_whole(tmp_path / "q") as file:
        file.write("new")
    assert listed(tmp_path) == [".q.1.lowbit-tmp", "precious", "q"]
    assert (tmp_path / "precious").read_text() == "x"
    assert (tmp_path / "q").read_text() == "new"
    if handle is not None:
        os.close(handle)


@pytest.mark.parametrize("target", ["fifo", "folder", "device"])
def test_only_regular_files_are_replaced(target, tmp_path):
    from lowbit.runtime.files.atomic import written_whole

    path = tmp_path / "q"
    if target == "fifo":
        os.mkfifo(path)
    elif target == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(OSError, match=r"not a regular file.*q'"), written_whole(path):
        pass
    assert listed(tmp_path) == ["q"]


# ---- a checkpoint -------------------------------------------------------------------------------------


OLD, NEW = (Recipe(f"g{g}", WeightRecipe("int4", group_size=g)) for g in (16, 32))


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    arrays = {f"layers.{i}.up_proj.weight": rng.standard_normal((32, 32)).astype(np.float32) for i in range(2)}
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


@pytest.mark.parametrize("replacing", [False, True])
def test_a_checkpoint_is_old_or_new_and_resuming_leaves_the_new_one_alone(replacing, tmp_path):
    source, target = checkpoint(tmp_path / "f"), tmp_path / "q"
    options: dict[str, Any] = {"max_shard_bytes": 700, "overwrite": replacing}
    whole = {}
    for name, recipe in (("old", OLD), ("new", NEW)):
        quantize_checkpoint(source, tmp_path / name, recipe, max_shard_bytes=700)
        whole[name] = contents(tmp_path / name)
    seen = set()
    for step in range(1, 1000):
        shutil.rmtree(target, ignore_errors=True)
        if replacing:
            shutil.copytree(tmp_path / "old", target)
        called = killed_before(step, lambda: quantize_checkpoint(source, target, NEW, **options))
        if not called:
            break
        if target.exists():
            assert contents(target) in ([whole["old"], whole["new"]] if replacing else [whole["new"]]), called
        elif replacing:  # between two renames: the next run begins by putting it back
            assert contents(tmp_path / ".q.old") == whole["old"]
            with pytest.raises(InvalidProblem, match="not empty"):
                quantize_checkpoint(source, target, NEW, max_shard_bytes=700)
            assert contents(target) == whole["old"]
            seen.add("put back")
        seen.add(called)
        quantize_checkpoint(source, target, NEW, resume=True, **options)
        assert contents(target) == whole["new"]
        assert listed(tmp_path) == ["f", "new", "old", "q"], called
    assert {"mkdir", "fsync", "replace", "rename"} <= seen
    assert ("put back" in seen) == replacing
    assert contents(target) == whole["new"]
    assert listed(tmp_path) == ["f", "new", "old", "q"]


def test_a_run_that_was_killed_before_its_first_shard_leaves_nothing_that_stands_in_the_way(tmp_path):
    source = checkpoint(tmp_path / "f")
    for step in range(1, 13):
        killed_before(step, lambda: quantize_checkpoint(source, tmp_path / "q", NEW), (*STEPS, "open"))
        quantize_checkpoint(source, tmp_path / "q", NEW, overwrite=True)
        assert listed(tmp_path) == ["f", "q"]
        shutil.rmtree(tmp_path / "q")


# ---- statistics -------------------------------------------------------------------------------------


@pytest.mark.parametrize("replacing", [False, True])
def test_statistics_are_old_or_new_and_resuming_ends_in_the_same_bytes(replacing, tmp_path):
    from lowbit.calibration import Moments
    from lowbit.formats.statistics import DataPart, StatisticsWriter

    def write(folder: Path, model: str, **options: Any) -> None:
        with StatisticsWriter(folder, model=model, data=DataPart("d", 3), options={}, **options) as writer:
            for name in () if writer.complete else {"a", "b"} - set(writer.finished):
                moments = Moments(3)
                moments.add(np.full((4, 3), ord(name), np.float32))
                writer.put([name], moments)
            if not writer.complete:
                writer.commit()

    target, whole = tmp_path / "q", {}
    for model in ("old", "new"):
        write(tmp_path / model, model)
        whole[model] = contents(tmp_path / model)
    seen = set()
    for step in range(1, 1000):
        shutil.rmtree(target, ignore_errors=True)
        if replacing:
            shutil.copytree(tmp_path / "old", target)
        called = killed_before(step, lambda: write(target, "new", overwrite=replacing))
        seen.add(called)
        if target.exists():
            assert contents(target) in ([whole["old"], whole["new"]] if replacing else [whole["new"]]), called
        write(target, "new", resume=True, overwrite=replacing)
        assert contents(target) == whole["new"]
        assert listed(tmp_path) == ["new", "old", "q"], called
        if not called:
            break
    assert {"mkdir", "fsync", "replace", "rename", ""} <= seen


# ---- an ONNX model and its data -----------------------------------------------------------------------


def test_an_onnx_model_reads_its_own_data_whenever_it_is_killed(tmp_path):
    pytest.importorskip("onnxruntime")
    import onnx_models as made
    from lowbit.formats.onnx.graph import Graph

    x = {"x": made.normal(3, 64)}
    path = tmp_path / "a.onnx"
    graphs, outputs = [], []
    for factor in (1.0, -2.0):
        proto = made.matmul()
        w = proto.graph.initializer[0]
        w.raw_data = (np.frombuffer(w.raw_data, np.float32) * np.float32(factor)).tobytes()
        graphs.append(Graph.load(proto))
        outputs.append(made.run(proto, x)[0])
    seen = []
    for step in range(1, 200):
        graphs[0].save(path, external_data=True)
        assert len(listed(tmp_path)) == 2, (seen, listed(tmp_path))
        called = killed_before(step, lambda: graphs[1].save(path, external_data=True))
        found = made.run(path, x)[0]
        assert any(np.array_equal(found, y) for y in outputs), (seen, called)
        if not called:
            break
        seen.append(called)
    assert seen.count("replace") >= 3  # the manifest, the data, the model
    assert np.array_equal(found, outputs[1])
    assert len(listed(tmp_path)) == 2
