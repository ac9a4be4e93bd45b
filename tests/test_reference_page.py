"""docs/reference.md is what the docstrings say of every public name; --update-golden writes it."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import astdsl
from astdsl.ir.dtypes import DType
from astdsl.records import complete
from tests.goldens import GoldenFolder

ROOT = Path(__file__).resolve().parent.parent

# The modules that public names come from, in the order of the page.
SECTIONS = {
    "Kernels": ("astdsl.kernel", "astdsl.lang.params", "astdsl.lang.annotations"),
    "Devices and saved kernels": ("astdsl.runtime.devices", "astdsl.saved"),
    "Pipelines and loops": (
        "astdsl.lang.control",
        "astdsl.lang.orders",
        "astdsl.lang.emitted",
        "astdsl.lang.block_specs",
    ),
    "Windows and memory": (
        "astdsl.lang.windows",
        "astdsl.lang.memory",
        "astdsl.lang.transforms",
        "astdsl.lang.unions",
    ),
    "Making and moving tiles": ("astdsl.lang.shapes", "astdsl.lang.parts", "astdsl.lang.bits"),
    "Elementwise functions": ("astdsl.lang.arith", "astdsl.lang.inline"),
    "Reductions and scans": ("astdsl.lang.reductions", "astdsl.lang.scans"),
    "Products": ("astdsl.lang.tensor",),
    "Atomic operations": ("astdsl.lang.atomics",),
    "Layouts": ("astdsl.lang.layouts",),
    "Coordinates and warpgroups": ("astdsl.lang.warpgroups",),
    "Barriers": ("astdsl.lang.sync",),
    "Tensor cores by hand": (
        "astdsl.lang.products",
        "astdsl.lang.tmem",
        "astdsl.lang.tmem_scales",
    ),
    "Errors": ("astdsl.errors",),
}
# Names of Python's builtins, which a star import must not replace.
LIKE_BUILTINS = ("abs", "all", "any", "max", "min", "pow", "round", "sum")
INTRODUCTION = """\
# Reference

<!-- Written by tests/test_reference_page.py: pytest --update-golden. -->

Every public name of `astdsl`, as its docstring has it. `abs all any max min pow round sum` are in
the package, but not in its `__all__`: in a kernel Python's own mean the same.

The dtypes are {dtypes}. A dtype called with a value converts it, as `astype` does.
"""


def public() -> dict[str, Any]:
    names = sorted([*astdsl.__all__, *LIKE_BUILTINS], key=str.lower)
    return {name: getattr(astdsl, name) for name in names if not name.startswith("__")}


def module_of(value: Any) -> str:
    return str(getattr(value, "__module__", None) or type(value).__module__)


def signature_of(value: Any) -> str:
    """Write a signature without annotations, which are for type checkers; "" if it has none."""
    if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
        return ""
    if inspect.isclass(value):
        complete(value)
    try:
        found = inspect.signature(value)
    except ValueError:
        return ""
    parameters = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    # A default that is a function is shown by its name, not by where it is in memory.
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", str(inspect.Signature(parameters)))


def entry(name: str, value: Any) -> str:
    return f"### `{name}{signature_of(value)}`\n\n{inspect.getdoc(value)}\n"


def page() -> str:
    names = public()
    dtypes = [f"`{name}`" for name, value in names.items() if isinstance(value, DType)]
    parts = [INTRODUCTION.format(dtypes=" ".join(dtypes))]
    for title, modules in SECTIONS.items():
        entries = [entry(n, v) for n, v in names.items() if module_of(v) in modules]
        if entries:
            parts += [f"## {title}\n", *entries]
    return "\n".join(parts)


def test_the_page_is_what_the_docstrings_say(request: pytest.FixtureRequest) -> None:
    is_update = bool(request.config.getoption("update_golden"))
    GoldenFolder(ROOT / "docs", is_update).compare(page(), "reference.md")


def test_every_public_name_has_a_section_and_a_docstring() -> None:
    known = {module for modules in SECTIONS.values() for module in modules}
    for name, value in public().items():
        if not isinstance(value, DType):
            assert module_of(value) in known, f"{name} of {module_of(value)} is in no section"
            assert inspect.getdoc(value), f"{name} has no docstring"
