"""Any name that Python allows is a kernel's: none collides with what the back end names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

TEXT = """
from astdsl import *

@kernel
def NAME(x: In[f32, "64"], o: Out[f32, "64"]):
    buf = SMEM((64,), f32)
    buf[...] = x[...]
    o[...] = buf[...] + 1
"""


@pytest.mark.parametrize("name", ["smem", "WARP_SZ", "entry", "mov", "größe", "_"])
def test_a_kernel_may_have_any_name(name: str, tmp_path: Path) -> None:
    path, names = tmp_path / "kernels.py", dict[str, Any]()
    path.write_text(TEXT.replace("NAME", name), encoding="utf-8")
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)  # noqa: S102
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(names[name].on("emulator")(x), x + 1)
    assert names[name].lower(x).cubin.startswith(b"\x7fELF")
