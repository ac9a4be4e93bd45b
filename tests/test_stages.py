"""`add`, `sum0` and `matmul` of the examples at every stage of their compilation.

Of LLVM's text only the kernel's parameters are compared, and of the PTX the sequence of
asynchronous instructions: the rest changes with LLVM.
"""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from astdsl import f16, f32, spec
from astdsl.lowered import Lowered
from tests.goldens import Golden

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
KERNELS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "add": ("tutorial/01_add.py", (spec((4096, 4096), f32), spec((4096, 4096), f32))),
    "sum0": ("tutorial/02_reduction.py", (spec((8, 1024, 1024), f32),)),
    "matmul": ("matmul.py", (spec((512, 512), f16), spec((512, 512), f16))),
}
TARGETS = ("sm_90a", "sm_100a")
ASYNCHRONOUS = re.compile(
    r"\b(?:cp\.async|cp\.reduce|mbarrier|fence|wgmma|tcgen05|bar\.sync|barrier|elect)[\w.:]*"
)
PARAMETER = re.compile(r'(ptr|i\d+|float|double|half|bfloat)\b[^,%]*%"?([\w.$]+)')


def lower(name: str, target: str = "sm_90a") -> Lowered:
    script, arguments = KERNELS[name]
    lowered: Lowered = runpy.run_path(str(EXAMPLES / script))[name].lower(*arguments, target=target)
    return lowered


@pytest.mark.parametrize("name", KERNELS)
def test_the_rewritten_source_is_as_it_was(name: str, golden: Golden) -> None:
    golden(lower(name).source, f"stages/{name}.source.txt")


@pytest.mark.parametrize("name", KERNELS)
def test_the_ir_is_as_it_was(name: str, golden: Golden) -> None:
    golden(lower(name).ir, f"stages/{name}.ir.txt")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_the_schedule_is_as_it_was(name: str, target: str, golden: Golden) -> None:
    golden(lower(name, target).schedule, f"stages/{name}.{target}.schedule.txt")


@pytest.mark.parametrize("name", KERNELS)
def test_the_parameters_of_the_kernel_in_llvm_are_as_they_were(name: str, golden: Golden) -> None:
    lines = lower(name).llvm.splitlines()
    (head,) = [line for line in lines if line.startswith("define ptx_kernel ")]
    found = PARAMETER.findall(head.partition("(")[2])
    golden("".join(f"{kind} {name}\n" for kind, name in found), f"stages/{name}.llvm.txt")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_the_asynchronous_instructions_are_as_they_were(
    name: str, target: str, golden: Golden
) -> None:
    code = re.sub(r"//.*", "", lower(name, target).ptx)
    found = ASYNCHRONOUS.findall(code)
    golden("\n".join(found) + "\n", f"stages/{name}.{target}.ptx.txt")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_the_assembler_has_nothing_to_say(name: str, target: str) -> None:
    costs = lower(name, target).resources
    assert (costs.spill_bytes, costs.messages) == (0, ())
