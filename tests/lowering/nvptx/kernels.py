"""Small kernels that several tests of the builder start from."""

from __future__ import annotations

from collections.abc import Callable

from astdsl.lowering.nvptx import pipeline
from astdsl.lowering.nvptx.builder import Builder
from astdsl.lowering.nvptx.llvm import LaunchBounds, Module, Parameter
from astdsl.lowering.nvptx.values import LV, i32
from astdsl.lowering.target import SM_90A, Target

BOUNDS = LaunchBounds(threads=128)


def begin(*parameters: Parameter, bounds: LaunchBounds = BOUNDS) -> tuple[Module, Builder]:
    """Begin a kernel `k` with arrays `x` (read only) and `y`, and more parameters."""
    module = Module()
    arrays = [Parameter.array("x", read_only=True), Parameter.array("y")]
    return module, module.kernel("k", [*arrays, *parameters], bounds)


def ptx_of(module: Module, target: Target = SM_90A) -> str:
    """Compile a module."""
    return pipeline.generate(module.text(), target)


def element(builder: Builder, array: str, type: str = "float") -> LV:
    """Give the address of this thread's element of an array."""
    index = builder.cast("zext", builder.special_register("tid.x"), "i64")
    return builder.gep(type, builder.parameters[array], index)


def loop(builder: Builder, count: int | LV, body: Callable[[LV], object]) -> None:
    """Write a loop that runs `body` `count` times, the back edge marked as every loop's."""
    bound = i32(count) if isinstance(count, int) else count
    before, header = builder.current, builder.block("loop")
    inside, after = builder.block("body"), builder.block("after")
    builder.br(header)
    builder.position(header)
    counter = builder.phi("i32", "step")
    counter.add(i32(0), before)
    builder.cond_br(builder.icmp("slt", counter.value, bound), inside, after)
    builder.position(inside)
    body(counter.value)
    counter.add(builder.add(counter.value, i32(1)), builder.current)
    builder.back_br(header)
    builder.position(after)
