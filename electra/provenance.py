"""Record what produced a number: the commit, versions, hardware and command."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from electra import __version__


def environment() -> dict[str, Any]:
    """Return what a reader needs to reproduce the numbers of this process."""
    import torch

    packages = ("torch", "transformers", "tokenizers", "numpy", "safetensors", "pyarrow")
    return {
        "electra": __version__,
        "commit": commit(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in packages},
        "processes": int(os.environ.get("WORLD_SIZE", 1)),
        "threads": torch.get_num_threads(),
        "cpu": cpu_name(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def environment_differences(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return what differs between two environments and may change the last bits of a number."""
    differences = []
    earlier_packages, packages = earlier.get("packages"), now["packages"]
    if isinstance(earlier_packages, dict):
        earlier, now = earlier | earlier_packages, now | packages
    for name in ("python", "cpu", "gpus", "processes", "threads", *packages):
        if name in earlier and earlier[name] != now[name]:
            differences.append(f"{name} {earlier[name]} → {now[name]}")
    return differences


def cpu_name() -> str:
    """Return the model of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf8")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*: (.+)$", text, flags=re.MULTILINE)
    if match:
        return match[1]
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """Return the git description of the code; None where it does not run from a checkout."""
    checkout = Path(__file__).parent.parent
    # Where the package is installed, a repository around it is somebody else's.
    if not (checkout / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", checkout, "describe", "--always", "--dirty", "--abbrev=12"],
            check=False,
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
