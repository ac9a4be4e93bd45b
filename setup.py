"""Find the packages of the three folders that pyproject.toml maps into `astdsl`."""

from setuptools import find_packages, setup


def package_names() -> list[str]:
    """Name every package as it is imported: `lowering.nvptx` is `astdsl.lowering.nvptx`."""
    inside = find_packages(include=["astdsl", "astdsl.*"])
    mapped = find_packages(include=["lowering", "lowering.*", "stdlib", "stdlib.*"])
    return inside + [f"astdsl.{name}" for name in mapped]


setup(packages=package_names())
