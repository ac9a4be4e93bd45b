"""What every test may use: the golden files; and BLAS kept to one thread.

Two workers whose BLAS threads wait for each other's cores take twenty times as long. The variable
is read when NumPy is first imported, which no plugin of ours does before this file.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

pytest_plugins = ["tests.goldens"]
