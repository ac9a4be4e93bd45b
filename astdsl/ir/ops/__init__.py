"""Every operation of the IR, by family; `from astdsl.ir import ops` and write `ops.Add`."""

from astdsl.ir.ops.arith import *  # noqa: F403  (the families are this package's names)
from astdsl.ir.ops.control import *  # noqa: F403
from astdsl.ir.ops.indexed import *  # noqa: F403
from astdsl.ir.ops.memory import *  # noqa: F403
from astdsl.ir.ops.sync import *  # noqa: F403
from astdsl.ir.ops.tensor import *  # noqa: F403
from astdsl.ir.ops.tile import *  # noqa: F403
from astdsl.ir.ops.tmem import *  # noqa: F403
