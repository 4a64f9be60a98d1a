"""A result worth keeping says how it was made: command, commit, versions, hardware, date. Not where files lay."""

from __future__ import annotations

import json
import platform
import re
import time
from pathlib import Path
from typing import Any


def keep(path: str | Path, values: dict[str, Any]) -> None:
    from electra.training.folder import environment  # late: it brings torch, which would weigh on measured memory

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {"date": time.strftime("%Y-%m-%d"), "processor": platform.machine(), **environment()}
    made["command"] = [re.sub(r"(^|=)/.*/", r"\1", word) for word in made["command"]]
    path.write_text(json.dumps({**values, "made": made}, indent=1) + "\n", encoding="utf8")
    print(f"kept in {path}")
