"""`python -m tests.without_pickle ...` is `electra ...` in a process that refuses every pickle."""

from __future__ import annotations

import pickle
import sys
from typing import Never

from torch.distributed import distributed_c10d

from electra.__main__ import main


def refuse(*arguments: object, **options: object) -> Never:
    raise AssertionError("something was unpickled")


pickle.load = pickle.loads = refuse
distributed_c10d._tensor_to_object = refuse

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
