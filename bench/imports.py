"""Time `import astdsl` beyond NumPy's import, by `python -X importtime`.

Run it on an idle machine: `python -m bench.imports`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from bench import common

LIMIT_MS = 80.0
_ROW = re.compile(r"import time:\s+\d+ \|\s+(\d+) \| (\w+)$", re.MULTILINE)


def import_ms(environment: dict[str, str]) -> dict[str, float]:
    """Return what importing NumPy, then astdsl, takes in a new process."""
    command = [sys.executable, "-X", "importtime", "-c", "import numpy, astdsl"]
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    return {name: int(time_us) / 1e3 for time_us, name in _ROW.findall(done.stderr)}


def figures(repeats: int) -> list[common.Figure]:
    """Return the least times of `repeats` processes; the first writes byte code and is left out."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment = kept | {"PYTHONPYCACHEPREFIX": folder}
        import_ms(environment)
        times = [import_ms(environment) for _ in range(repeats)]
    ours, numpys = (min(each[name] for each in times) for name in ("astdsl", "numpy"))
    return [
        common.Figure("import astdsl, beyond NumPy's", ours, "ms", LIMIT_MS),
        common.Figure("import numpy", numpys, "ms"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = common.options(__doc__).parse_args(arguments)
    return common.show(figures(2 * chosen.repeats), as_json=chosen.json)


if __name__ == "__main__":
    common.run(main)
