"""What every test may use: the golden files; BLAS on one thread; Hypothesis without a clock.

Nothing is kept on disk from one run to the next: what a test compiles, it compiles.

Two workers whose BLAS threads wait for each other's cores take twenty times as long. The variable
is read when NumPy is first imported, which no plugin of ours does before this file. A loaded
machine is no failure either: examples have no deadline.
"""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["ASTDSL_CACHE"] = "0"
settings.register_profile("astdsl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("astdsl")

pytest_plugins = ["tests.goldens"]
