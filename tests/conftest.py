"""What every test may use: the golden files; BLAS on one thread; Hypothesis without a clock.

Nothing is kept on disk from one run to the next: what a test compiles, it compiles.

Two workers whose BLAS threads wait for each other's cores take twenty times as long. The variable
is read when NumPy is first imported, which no plugin of ours does before this file. A loaded
machine is no failure either: examples have no deadline.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["ASTDSL_CACHE"] = "0"
# What a test does not place runs on the emulator, on a machine with a GPU too.
os.environ.setdefault("ASTDSL_DEVICE", "emulator")
settings.register_profile("astdsl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("astdsl")

pytest_plugins = ["tests.goldens"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the acceptance tests `gpu`: where there is a GPU it is one more witness of theirs.

    Those who ask for `-m gpu` where there is none are told so by skipped tests.
    """
    # NumPy comes with it, and must not come before the variables above.
    from astdsl.runtime.devices import why_no_gpu  # noqa: PLC0415

    reason = why_no_gpu() if str(config.getoption("markexpr")) == "gpu" else ""
    for item in items:
        if "acceptance" in item.path.parts:
            item.add_marker("gpu")
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"the GPU is no witness here: {reason}"))
