"""Mistakes that only whole kernels show, called as users call them: each has its report."""

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import astdsl
from astdsl import DeviceError, KernelError
from astdsl.errors import FailedAssertion
from tests.goldens import Golden

HEADER = "from astdsl import *\n\n"
X = np.ones((100, 200), np.float32)
V = np.ones(64, np.float32)

# Each is a file with one kernel, `wrong`, and the arguments of the call that is refused.
MISTAKES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "signature": (
        """
@kernel
def wrong(x: In[f32, "M N"], *others):
    pass
""",
        (X,),
    ),
    "aliased-output": (
        """
@kernel
def wrong(x: In[f32, "N"], o: Out[f32, "N"]):
    o[...] = x[...] + 1
""",
        (V, V),
    ),
    "assertion": (
        """
@kernel
def wrong(x: In[f32, "M N"], o: Out[f32, "M N"], *, bn=128):
    M, N = x.shape
    assert N % bn == 0, "whole blocks only"
    with pipeline(M, N // bn) as (i, j):
        o[i, tile(j, bn)] = x[i, tile(j, bn)]
""",
        (X,),
    ),
    "unwritten-read": (
        """
@kernel
def wrong(x: In[f32, "R N"], o: Out[f32, "N"], *, b=64):
    R, N = x.shape
    with pipeline(cdiv(N, b), R) as (j, r):
        o[tile(j, b)] += x[r, tile(j, b)]
""",
        (X,),
    ),
    "scattered-accumulation": (
        """
@kernel
def wrong(x: In[f32, "R N"], o: Out[f32, "N"], *, b=64):
    R, N = x.shape
    with pipeline(R, cdiv(N, b)) as (r, j):
        if r == 0:
            o[tile(j, b)] = zeros((b,), f32)
        o[tile(j, b)] += x[r, tile(j, b)]
""",
        (X,),
    ),
    "overlapping-windows": (
        """
@kernel
def wrong(x: In[f32, "M N"], o: Out[f32, "M N"]):
    M, N = x.shape
    with pipeline(M) as i:
        o[i, 0:64] = x[i, 0:64]
        o[i, 32:96] = x[i, 32:96]
""",
        (X,),
    ),
    "parallel-conflict": (
        """
@kernel
def wrong(x: In[f32, "M N"], o: Out[f32, "M N"], *, b=64):
    M, N = x.shape
    with parallel(M, cdiv(N, b)) as (i, j):
        o[i, tile(0, b)] = x[i, tile(j, b)]
""",
        (X,),
    ),
    "repeated-index": (
        """
@kernel
def repeated(x: In[f32, "N"], o: InOut[f32, "N"]):
    o[x[...].astype(i32)] = iota(x.shape)


wrong = repeated.on("reference")
""",
        (V, V.copy()),
    ),
    "out-of-shared-memory": (
        """
@kernel
def wrong(x: In[f32, "M N"], y: In[f32, "M N"], o: Out[f32, "M N"]):
    M, N = x.shape
    with pipeline(cdiv(N, 128)) as j:
        with pipeline(cdiv(M, 64), stages=4) as i:
            block = tile(i, 64), tile(j, 128)
            o[block] = x[block] + y[block]
""",
        (np.ones((256, 256), np.float32), np.ones((256, 256), np.float32)),
    ),
    "too-large-a-tile": (
        """
@kernel
def wrong(x: In[f32, "1024 1024"], o: Out[f32, "1024"]):
    o[...] = x[...].sum(axis=1)
""",
        (np.ones((1024, 1024), np.float32),),
    ),
    "unwritten-shared-memory": (
        """
@kernel(warpgroups=1)
def wrong(o: Out[f32, "64"]):
    buf = SMEM((64,), f32)
    o[...] = buf[...]
""",
        (np.zeros(64, np.float32),),
    ),
    "deadlock": (
        """
@kernel(warpgroups=1, check=False)
def wrong(x: In[f32, "64"], o: Out[f32, "64"]):
    buf, full = SMEM((64,), f32), Barrier(num_arrivals=2)
    copy_gmem_to_smem(x.at[...], buf, full)
    barrier_wait(full)
    o[...] = buf[...]
""",
        (V,),
    ),
    "unknown-device": (
        """
@kernel
def right(x: In[f32, "N"], o: Out[f32, "N"]):
    o[...] = x[...]

wrong = right.on("emulater")
""",
        (V,),
    ),
    "unknown-target": (
        """
@kernel
def right(x: In[f32, "N"], o: Out[f32, "N"]):
    o[...] = x[...]

wrong = right.on(target="sm_90")
""",
        (V,),
    ),
    "deadlock-before-the-launch": (
        """
@kernel(warpgroups=2)
def wrong(x: In[f32, "64"], o: Out[f32, "64"]):
    buf, full = SMEM((64,), f32), Barrier(num_arrivals=2)
    if warpgroup_id() == 0:
        copy_gmem_to_smem(x.at[...], buf, full)
    else:
        barrier_wait(full)
        o[...] = buf[...]
""",
        (V,),
    ),
    "missing-proxy-fence": (
        """
@kernel(warpgroups=1)
def wrong(x: In[f32, "64"], o: Out[f32, "64"]):
    buf = SMEM((64,), f32)
    buf[...] = x[...] + 1
    copy_smem_to_gmem(buf, o.at[...])
    wait_smem_to_gmem(0)
""",
        (V,),
    ),
    "deadlock-on-the-reference": (
        """
@kernel(warpgroups=1, check=False)
def on_the_reference(x: In[f32, "64"], o: Out[f32, "64"]):
    buf, full = SMEM((64,), f32), Barrier(num_arrivals=2)
    copy_gmem_to_smem(x.at[...], buf, full)
    barrier_wait(full)
    o[...] = buf[...]

wrong = on_the_reference.on("reference")
""",
        (V,),
    ),
}


def call(folder: Path, text: str, arguments: tuple[Any, ...]) -> KernelError:
    file = folder / "kernel.py"
    file.write_text(HEADER + text.lstrip("\n"), encoding="utf-8")
    with astdsl.device("emulator"), pytest.raises(KernelError) as caught:
        runpy.run_path(str(file))["wrong"](*arguments)
    return caught.value


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported(name: str, tmp_path: Path, golden: Golden) -> None:
    report = call(tmp_path, *MISTAKES[name]).report().replace(f"{tmp_path}/", "")
    # Which line of PTX it is changes with LLVM.
    golden(re.sub(r"PTX line \d+(: [^;\n]*)?", "PTX line _", report) + "\n", f"errors/{name}.txt")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_report_shows_the_way_out(name: str, tmp_path: Path) -> None:
    error = call(tmp_path, *MISTAKES[name])
    says_it = isinstance(error, FailedAssertion)  # the message is the author's own
    assert isinstance(error, DeviceError) or says_it or error.help


def test_text_that_python_does_not_keep_is_refused(golden: Golden) -> None:
    names: dict[str, Any] = {}
    exec(f"{HEADER}@kernel\ndef wrong(x: In[f32, 'N']):\n    pass\n", names)  # noqa: S102
    with pytest.raises(KernelError) as caught:
        names["wrong"](V)
    golden(caught.value.report() + "\n", "errors/no-source.txt")
