"""`astdsl doctor`: what is installed, which tools are found, which devices there are, the cache.

Invariant: it looks, and changes nothing.
"""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

from astdsl import backend, store
from astdsl.cli.render import Screen
from astdsl.runtime.devices import devices, selected_device, selected_target

HELP = "show versions, tools, devices and the cache on disk"
PACKAGES = (
    "astdsl", "numpy", "ml_dtypes", "llvmlite", "cuda-core", "cuda-bindings", "nvidia-cuda-nvcc",
    "nvidia-nvjitlink", "nvidia-nvvm", "nvidia-cuda-nvdisasm",
)  # fmt: skip
NOT_INSTALLED = "not installed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--json", action="store_true", help="write what a program can read")


def run(options: argparse.Namespace, screen: Screen) -> int:
    """Print the table."""
    del options
    packages = {"python": platform.python_version(), **{n: _version(n) for n in PACKAGES}}
    tools = {name: path or "not found" for name, path in backend.tools().items()}
    found = {d.name: "available" if d.available else d.reason for d in devices()}
    chosen = {"device": selected_device(), "target": selected_target(selected_device())}
    sections = {
        "packages": packages, "tools": tools, "devices": found, "chosen": chosen, "cache": _cache(),
    }  # fmt: skip
    if screen.as_json:
        screen.show_json(sections)
        return 0
    for title, rows in sections.items():
        screen.show(title)
        screen.show_table((f"  {name}", text) for name, text in rows.items())
    return 0


def _cache() -> dict[str, str]:
    folder = store.private_folder()
    if folder is None:
        return {"folder": "not used: it is turned off, or others can write it"}
    sizes = [path.stat().st_size for path in folder.glob(f"*{store.SUFFIX}")]
    return {"folder": str(folder), "entries": f"{len(sizes)}, {sum(sizes)} bytes"}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED
