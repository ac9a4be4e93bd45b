"""Kernels in files: saved, loaded, launched without their source, and refused where damaged."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import astdsl
from astdsl import In, InOut, Out, cdiv, f16, f32, i32, kernel, load, pipeline, tile, zeros
from astdsl.errors import BadArgument, FailedAssertion
from astdsl.saved import read


@kernel
def scaled(x: In[f32, "M N"], o: Out[f32, "M N"], n: i32 = 2, *, bm=16, bn=32):
    M, N = x.shape
    assert M % 2 == 0, "M is even"
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        o[tile(i, bm), tile(j, bn)] = x[tile(i, bm), tile(j, bn)] * n


@kernel
def product(a: In[f16, "M K"], b: In[f16, "K N"], c: Out[f32, "M N"], *, bm=64, bn=64, bk=32):
    M, K = a.shape
    _, N = b.shape
    with pipeline(cdiv(M, bm), cdiv(N, bn)) as (i, j):
        acc = zeros((bm, bn), f32)
        with pipeline(cdiv(K, bk), stages=3) as k:
            acc += a[tile(i, bm), tile(k, bk)] @ b[tile(k, bk), tile(j, bn)]
        c[tile(i, bm), tile(j, bn)] = acc


def matrix(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kernel.astdsl"


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("device", ["emulator", "reference"])
def test_a_loaded_kernel_launches(path: Path, device: str, target: str) -> None:
    x = matrix(32, 64)
    scaled.lower(x, target=target, bn=16).save(path)
    with astdsl.device(device):
        loaded = load(path)
        np.testing.assert_array_equal(loaded(x, n=3), x * 3)
        np.testing.assert_array_equal(loaded(matrix(48, 80)), matrix(48, 80) * 2)


def test_a_loaded_kernel_launches_again_and_again(path: Path) -> None:
    scaled.lower(matrix(32, 64)).save(path)
    loaded = load(path)
    with astdsl.device("reference"):
        for n in range(4):
            x = matrix(32, 64) + n
            np.testing.assert_array_equal(loaded(x, np.zeros_like(x), n), x * n)
            np.testing.assert_array_equal(loaded(x[:16]), x[:16] * 2)


def test_a_loaded_product_launches_for_other_sizes(path: Path) -> None:
    random = np.random.default_rng(0)
    a = random.integers(-3, 4, (64, 40)).astype(np.float16)
    b = random.integers(-3, 4, (40, 72)).astype(np.float16)
    product.lower(a[:8, :8].copy(), b[:8, :8].copy()).save(path)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(load(path)(a, b), expected)


def test_a_kernel_launches_in_a_process_without_its_source(path: Path, tmp_path: Path) -> None:
    source = tmp_path / "kernels.py"
    source.write_text(
        "from astdsl import In, Out, f32, kernel, spec\n"
        "@kernel\n"
        "def double(x: In[f32, '8'], o: Out[f32, '8']):\n"
        "    o[...] = x[...] * 2\n"
        f"double.lower(spec(8, f32)).save({str(path)!r})\n"
    )
    subprocess.run([sys.executable, str(source)], check=True)
    source.unlink()
    program = (
        "import sys, numpy as np, astdsl\n"
        f"print(astdsl.load({str(path)!r})(np.ones(8, np.float32)).tolist())\n"
        "assert 'llvmlite' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"{[2.0] * 8}\n"


def test_the_same_kernel_is_the_same_file(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for each in paths:
        scaled.lower(matrix(32, 64)).save(each)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_file_holds_what_a_launch_needs(path: Path) -> None:
    lowered = scaled.lower(matrix(32, 64))
    lowered.save(path)
    with zipfile.ZipFile(path) as file:
        assert file.read("kernel.ptx").decode() == lowered.ptx
        assert file.read("kernel.cubin") == lowered.cubin


def test_a_loaded_kernel_is_saved_again_as_the_same_file(path: Path, tmp_path: Path) -> None:
    scaled.lower(matrix(32, 64), bm=8).save(path)
    load(path).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_constants_are_settled_in_a_loaded_kernel(path: Path) -> None:
    scaled.lower(matrix(32, 64)).save(path)
    with pytest.raises(BadArgument, match="`bn` is settled"):
        load(path)(matrix(32, 64), bn=8)


def test_arguments_of_another_class_are_refused_by_a_loaded_kernel(path: Path) -> None:
    scaled.lower(matrix(32, 64)).save(path)
    with pytest.raises(BadArgument, match="is compiled for"):
        load(path)(matrix(32, 64)[:, ::2])


@kernel
def shifted(
    x: In[f32, "M N"], by: In[f32, "N"] | None = None, o: Out[f32, "M N"] = None, up: f32 = 1.0
):
    t = x[...]
    if by is not None:
        t = t + by[...][None, :]
    o[...] = t + up


@pytest.mark.parametrize(
    ("compiled_for", "called_with", "said"),
    [
        ((matrix(8, 16),), (matrix(8, 32),), "`x` has 32 elements along axis 1, and .* for 16"),
        ((matrix(8, 16),), (matrix(0, 16),), "`x` has 0 elements along axis 0, and .* for 8"),
        (
            (matrix(8, 16),),
            (matrix(16, 8).T,),
            "class .axis 0 contiguous; TMA.* for .axis 1 contig",
        ),
        ((matrix(8, 16),), (matrix(8, 16), matrix(16)), "`by` is given, and .* calls without it"),
        ((matrix(8, 16), matrix(16)), (matrix(8, 16),), "`by` is left out, and .* calls with it"),
    ],
    ids=["extent", "empty", "class", "given", "left out"],
)
def test_what_differs_from_the_compiled_arguments_is_said_in_words(
    compiled_for: Any, called_with: Any, said: str
) -> None:
    compiled = shifted.lower(*compiled_for).compile()
    with pytest.raises(BadArgument, match=said):
        compiled(*called_with)


def test_a_path_that_cannot_be_written_or_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "kernel"
    with pytest.raises(BadArgument, match=f"`{path}` cannot be written: No such file"):
        scaled.lower(matrix(32, 64)).save(path)
    with pytest.raises(BadArgument, match=f"`{path}` cannot be read: No such file"):
        load(path)


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_no_file_can_be_called_is_refused(path: str) -> None:
    with pytest.raises(BadArgument, match="cannot be written"):
        scaled.lower(matrix(32, 64)).save(path)
    with pytest.raises(BadArgument, match=r"cannot be read|is no kernel"):
        load(path)


def test_a_file_that_is_not_finished_leaves_nothing(path: Path) -> None:
    path.mkdir()
    with pytest.raises(BadArgument, match="cannot be written"):
        scaled.lower(matrix(32, 64)).save(path)
    assert list(path.parent.iterdir()) == [path]


def test_assertions_of_the_host_are_checked_by_a_loaded_kernel(path: Path) -> None:
    scaled.lower(matrix(32, 64)).save(path)
    with pytest.raises(FailedAssertion, match="M is even"):
        load(path)(matrix(33, 64))


def test_dims_that_became_constants_stay_constants(path: Path) -> None:
    @kernel
    def whole(x: InOut[f32, "M N"]):
        x[...] += 1

    whole.lower(matrix(4, 8)).save(path)
    x = matrix(4, 8)
    load(path)(x)
    np.testing.assert_array_equal(x, matrix(4, 8) + 1)
    with pytest.raises(BadArgument, match="is compiled for"):
        load(path)(matrix(8, 8))


Change = Callable[[dict[str, bytes]], None]


def edited(key: str, value: Any) -> Change:
    def change(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        manifest[key] = value
        members["manifest.json"] = json.dumps(manifest).encode()

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("kernel.ptx"),
        lambda m: m.update({"more": b""}),
        lambda m: m.update({"kernel.ptx": m["kernel.ptx"] + b" "}),
        lambda m: m.update({"kernel.cubin": b"another"}),
        lambda m: m.update({"manifest.json": b"{}"}),
        lambda m: m.update({"manifest.json": b"\xff"}),
        edited("format", 2),
        edited("plan", {}),
        edited("signature", {"name": "x"}),
        edited("static", [["x", -1, 3]]),
        edited("digests", {}),
    ],
)
def test_a_file_that_was_changed_is_refused(path: Path, change: Change) -> None:
    scaled.lower(matrix(32, 64)).save(path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as file:
        for name, held in members.items():
            file.writestr(name, held)
    with pytest.raises(BadArgument, match="is no kernel that this version saved"):
        load(path)


@pytest.mark.parametrize("bits", [1, 0x80])
def test_a_file_with_a_wrong_byte_is_refused_or_the_same_kernel(path: Path, bits: int) -> None:
    scaled.lower(matrix(32, 64)).save(path)
    code, held = read(path).code, path.read_bytes()
    for place in range(0, len(held), 11):
        path.write_bytes(held[:place] + bytes([held[place] ^ bits]) + held[place + 1 :])
        with suppress(BadArgument):
            assert read(path).code == code


@pytest.mark.parametrize("held", [b"", b"PK\x03\x04", b"text"])
def test_what_is_no_kernel_is_refused(path: Path, held: bytes) -> None:
    path.write_bytes(held)
    with pytest.raises(BadArgument, match="is no kernel that this version saved"):
        load(path)
