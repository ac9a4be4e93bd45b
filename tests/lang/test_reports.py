"""What the author of a wrong kernel reads: whole reports, one golden for each mistake."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astdsl.errors import KernelError
from tests.goldens import Golden

HEADER = """from astdsl import *
from astdsl import scan


@kernel
def wrong(x: In[f32, "M N"], n: InOut[i32, "M"], o: Out[f32, "M N"], *, b=4):
    M, N = x.shape
"""
MISTAKES = {
    "one_kind": ["mask = x[0, 0:8] > 0", "o[0, 0:8] = x[0, 0:8] + mask"],
    "no_common_shape": ["row = x[0, 0:8]", "column = x[0:4, 0]", "o[0, 0:8] = row * column"],
    "negative_index": ["o[0] = x[-1]"],
    "runtime_extent": [
        "with pipeline(M) as i:",
        "    o[i, i : 2 * i] = 0",
    ],
    "read_whole": ["with pipeline(M) as i:", "    o[i] = sum(x.at[0:i][...], axis=0)"],
    "outside_a_tile": ["t = x[0:4, 0:4]", "o[0, 0:4] = t[4]"],
    "float_index": ["o[0:4] = x[x[0:4, 0]]"],
    "picked_again": ["o[0:4] = x.at[n[0:4]].at[0:2][...]"],
    "update_of_a_tile": ["atomic_add(o[0, 0:4], x[0, 0:4])"],
    "update_of_an_input": ["atomic_add(x.at[0, 0:4], 1)"],
    "order_misspelt": ['atomic_add(o.at[0, 0:4], 1, order="acquired")'],
    "bits_of_floats": ["atomic_or(o.at[0, 0:4], 1)"],
    "tile_as_bool": ["t = x[0:4, 0]", "ok = [k for k in (1, 2) if t.sum() > k]"],
    "tile_as_index": ["o[0, 0:4] = full((int(x[0, 0].astype(i32)) + b,), 1.0)[0:4]"],
    "tile_iterated": ["total = 0", "for row in x[0:4, 0:4]:", "    total = total + row"],
    "ref_iterated": ["for row in x:", "    o[0] = row"],
    "part_assigned": ["o.at[0] = 1"],
    "written_input": ["x[0, 0] = 1"],
    "float_into_integer": ["n[0:4] = x[0:4, 0] * 2"],
    "store_too_small": ["o[0, 0:4] = x[0:4, 0:4]"],
    "ref_as_value": ["o[...] = x + 1"],
    "misspelt_method": ["o[0, 0] = x[0:4, 0].summ()"],
    "misspelt_attribute": ["o[0, 0] = x.shap[0]"],
    "misspelt_option": ["with pipeline(M, stage=2) as i:", "    o[i, 0] = 1"],
    "option_of_later": ["with pipeline(M, persistent=True) as i:", "    o[i, 0] = 1"],
    "no_axes": ["with pipeline() as i:", "    o[i, 0] = 1"],
    "stages": ["with pipeline(M, stages=0) as i:", "    o[i, 0] = 1"],
    "schedule": ['with pipeline(M, schedule="multistag") as i:', "    o[i, 0] = 1"],
    "nested_parallel": [
        "with pipeline(M) as i:",
        "    with parallel(N) as j:",
        "        o[i, j] = 1",
    ],
    "pipeline_in_for": ["for i in pipeline(M):", "    o[i, 0] = 1"],
    "name_of_later": ["async_store_smem(x.at[0, 0:4])"],
    "dtype_of_later": ["o[0, 0:4] = x[0, 0:4].astype(tf32)"],
    "no_dtype": ['o[0, 0:4] = zeros((4,), "f32")'],
    "numpy_function": ["import numpy as np", "o[0, 0:4] = np.exp(x[0, 0:4])"],
    "constant_too_large": ["n[0:4] += 3_000_000_000"],
    "product_of_unequal": ["a, c = x[0:4, 0:8], x[0:4, 0:8]", "o[0:4, 0:8] = a @ c"],
    "product_of_integers": ["c = n[0:4]", "n[0] = c @ c"],
    "outside_lost": ["t = exp(x[M - 2 : M + 2, 0])", "o[0:2, 0:2] = t.reshape(2, 2)"],
    "arrivals": ["full = Barrier(num_arrivals=0)", "barrier_wait(full)"],
    "barrier_of_several": ["full = Barrier(num_barriers=2)", "barrier_wait(full)"],
    "copy_of_other_shape": [
        "buf, full = SMEM((4, 4), f32), Barrier()",
        "copy_gmem_to_smem(x.at[0:4, 0:8], buf, full)",
    ],
    "copy_of_a_tile": [
        "buf, full = SMEM((4, 4), f32), Barrier()",
        "copy_gmem_to_smem(x[0:4, 0:4], buf, full)",
    ],
    "copy_into_an_input": ["buf = SMEM((4, 4), f32)", "copy_smem_to_gmem(buf, x.at[0:4, 0:4])"],
    "copy_to_a_part": [
        "buf, full = SMEM((8, 8), f32), Barrier()",
        "copy_gmem_to_smem(x.at[0:4, 0:8], buf.at[0:4], full)",
    ],
    "through_a_helper": [
        "def scaled(t, by):",
        "    return t * by.mask",
        "o[0, 0:4] = scaled(x[0, 0:4], x[0, 0:4])",
    ],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_report_of_a_mistake(
    name: str, tmp_path: Path, golden: Golden, load_kernel: Callable[[Path], Any]
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(HEADER + "".join(f"    {line}\n" for line in MISTAKES[name]))
    wrong = load_kernel(path)
    arrays = np.ones((16, 12), np.float32), np.zeros(16, np.int32)
    with pytest.raises(KernelError) as caught:
        wrong.on("reference")(*arrays)
    golden(caught.value.report() + "\n", f"lang/{name}.txt")
    assert caught.value.help, "a report says what to do"


@pytest.fixture
def load_kernel() -> Callable[[Path], Any]:
    """Give a function that imports a file and returns its kernel `wrong`."""

    def load(path: Path) -> Any:
        spec = importlib.util.spec_from_file_location("kernel_under_test", path)
        assert spec is not None, "the file can be imported"
        assert spec.loader is not None, "the file can be imported"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.wrong

    return load
