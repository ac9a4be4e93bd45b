"""What a kernel of another compiler is and how it is launched; the facts of a stored one.

Invariant: a stored file is PTX without debug sections, whose first line tells all that its launch
needs, so that the tests of stored kernels need no other compiler.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

STORED = Path(__file__).with_name("stored")
_DEBUG = re.compile(r"^\s*\.section\s+\.debug.*?^\s*\}\s*$", re.DOTALL | re.MULTILINE)
_LINES = re.compile(
    r"^\s*(?:\.loc|\.file)\b.*\n|^\s*//.*\n|^\$L__(?:tmp|func_\w+)\d+:.*\n", re.MULTILINE
)


@dataclass(frozen=True)
class Compiled:
    """PTX and the facts of its launch.

    `swizzles` and `boxes` are of its tensor maps, in order; `scratch_bytes` are of global memory,
    for each block, where it makes tensor maps itself.
    """

    ptx: str
    entry: str
    threads: int
    shared_bytes: int
    cluster: int
    swizzles: tuple[int, ...] = ()
    boxes: tuple[tuple[int, ...], ...] = ()
    scratch_bytes: int = 0


def stripped(made: Compiled) -> str:
    """Return the text to store: facts, then PTX without what only debuggers read."""
    facts = {name: value for name, value in asdict(made).items() if name != "ptx"}
    ptx = _LINES.sub("", _DEBUG.sub("", made.ptx))
    return f"// {json.dumps(facts)}\n{ptx.strip()}\n"


def stored(stem: str) -> Compiled:
    """Read a stored kernel, `NAME-TARGET`."""
    text = (STORED / f"{stem}.ptx").read_text(encoding="utf-8")
    facts = json.loads(text.partition("\n")[0].removeprefix("// "))
    facts["swizzles"] = tuple(facts["swizzles"])
    facts["boxes"] = tuple(tuple(box) for box in facts["boxes"])
    return Compiled(ptx=text, **facts)
