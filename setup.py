"""Find the packages of the three folders that pyproject.toml maps into `astdsl`."""

from setuptools import find_packages, setup


def package_names() -> list[str]:
    """Name every package as it is imported: `lowering.nvptx` is `astdsl.lowering.nvptx`."""
    inside: list[str] = find_packages(include=["astdsl", "astdsl.*"])
    mapped: list[str] = find_packages(include=["lowering", "lowering.*", "stdlib", "stdlib.*"])
    return inside + [f"astdsl.{name}" for name in mapped]


setup(packages=package_names())
