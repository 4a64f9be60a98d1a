"""From a crawl to a requeued job: what the documents tell a cluster to do is what the command line
understands.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from electra.__main__ import main
from electra.cli import app
from electra.data.shards import Shards
from tests.conftest import toy_flags, toy_text
from tests.test_resume import wait_for_step

ROOT = Path(__file__).parent.parent
SLURM = ROOT / "docs" / "slurm"
CLEANING = (ROOT / "docs" / "cleaning.md").read_text(encoding="utf8")
SCRIPTS = sorted([*SLURM.glob("*.sbatch"), *SLURM.glob("*.sh")])
JOB = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_NODELIST": "localhost",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_ARRAY_TASK_ID": "3",
}

# Stand-ins for a cluster's commands. Those that are only looked at write their words down, one JSON
# list a line.
WRITE_DOWN = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["WRITTEN"], "a") as file:
    print(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]), file=file)
if sys.argv[1:3] == ["show", "hostnames"]:
    print("localhost")
"""
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'
TORCHRUN = f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n'


def cluster(folder: Path, **commands: str) -> dict[str, str]:
    """The environment of a job whose cluster consists of these commands."""
    (folder / "bin").mkdir()
    for name, content in commands.items():
        (folder / "bin" / name).write_text(content, encoding="utf8")
        (folder / "bin" / name).chmod(0o755)
    return (
        os.environ
        | JOB
        | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "WRITTEN": str(folder / "written"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
    )


def written(folder: Path) -> list[list[str]]:
    return [
        json.loads(line) for line in (folder / "written").read_text(encoding="utf8").splitlines()
    ]


# ---- Slurm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_sound_bash(script: Path) -> None:
    text = script.read_text(encoding="utf8")
    assert text.startswith("#!/bin/bash\n")
    assert re.search(r"^set -e?uo pipefail$", text, flags=re.MULTILINE)
    subprocess.run(["bash", "-n", script], check=True)
    code = "\n".join(line.partition("# ")[0] for line in text.splitlines())
    bare = re.findall(r"(?<![\"\w/{}:.@-])\$\{?\w+", re.sub(r"\[\[.*?\]\]|\w+=\S*", "", code))
    assert not bare, f"{script.name}: {bare} would be split at white space; quote them"
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("node.sbatch", ["--save-steps", "2000"]),
        ("nodes.sbatch", ["--max-steps", "1750000"]),
    ],
)
def test_the_command_line_understands_what_a_training_script_says(
    script: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = cluster(tmp_path, srun=SRUN, torchrun=WRITE_DOWN, scontrol=WRITE_DOWN)
    subprocess.run(["bash", SLURM / script, *words], cwd=ROOT, env=environment, check=True)
    *_, launched = written(tmp_path)
    assert launched[0] == "torchrun"
    program = launched.index("-m")
    assert launched[program : program + 3] == ["-m", "electra", "pretrain"]
    assert main([*launched[program + 2 :], "--print-config"]) == 0
    assert f"{words[0][2:].replace('-', '_')} = {words[1]}" in capsys.readouterr().out
    check_torchrun(launched[1:])


def check_torchrun(words: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    options = get_args_parser().parse_args(words)
    assert (options.module, options.training_script, options.nproc_per_node) == (
        True,
        "electra",
        "2",
    )
    assert options.standalone or (options.rdzv_endpoint, options.rdzv_id) == (
        "localhost:29500",
        "42-0",
    )


def test_the_command_line_understands_what_the_array_and_the_merger_say(tmp_path: Path) -> None:
    environment = cluster(tmp_path, electra=WRITE_DOWN)
    for script in ("shard.sbatch", "merge.sbatch"):
        subprocess.run(["bash", SLURM / script], cwd=tmp_path, env=environment, check=True)
    (_, *cut), (_, *merge) = written(tmp_path)
    _, given, _ = app.parse_args(cut, exit_on_error=False, print_error=False)
    assert given.args == ("cleaned",)
    options = asdict(given.kwargs["options"])
    assert {name: options[name] for name in ("part", "by_file", "length", "workers")} == {
        "part": "3/64",
        "by_file": True,
        "length": 512,
        "workers": 16,
    }
    _, given, _ = app.parse_args(merge, exit_on_error=False, print_error=False)
    assert given.kwargs == {"merge": True, "output_dir": Path("shards")}


@pytest.mark.slow
@pytest.mark.parametrize("script", ["node.sbatch", "nodes.sbatch"])
def test_a_warned_job_saves_queues_itself_again_and_goes_on(
    script: str, toy_shards: Path, tmp_path: Path
) -> None:
    environment = cluster(tmp_path, srun=SRUN, torchrun=TORCHRUN, scontrol=WRITE_DOWN)
    run = tmp_path / "run"
    environment |= {"RECIPE": "tiny", "DATA": str(toy_shards), "RUN": str(run), "PORT": "0"}

    def submitted(max_steps: int) -> subprocess.Popen[str]:
        flags = toy_flags({"--save-steps": "100000", "--max-steps": str(max_steps)})
        return subprocess.Popen(
            ["bash", SLURM / script, *flags],
            cwd=ROOT,
            env=environment,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    job = submitted(100_000)
    wait_for_step(job, run, 3)
    subprocess.run(
        ["pkill", "-USR1", "-g", str(job.pid), "-f", "warned.sh|torch.distributed.run"], check=True
    )
    said, _ = job.communicate(timeout=240)
    assert job.returncode == 75, said
    assert written(tmp_path)[-1] == ["scontrol", "requeue", "42"]
    stopped = json.loads((run / "status.json").read_text(encoding="utf8"))
    assert stopped["status"] == "stopped"
    assert (run / stopped["checkpoint"] / "weights.safetensors").is_file()
    again = submitted(stopped["step"] + 2)
    said, _ = again.communicate(timeout=240)
    assert again.returncode == 0, said
    finished = json.loads((run / "status.json").read_text(encoding="utf8"))
    assert (finished["status"], finished["step"]) == ("finished", stopped["step"] + 2)
    assert [words for words in written(tmp_path) if "requeue" in words] == [
        ["scontrol", "requeue", "42"]
    ]


def test_a_run_that_fails_by_itself_is_not_queued_again(tmp_path: Path) -> None:
    """Though its folder still says that an earlier start was stopped."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "status.json").write_text('{"status": "stopped"}', encoding="utf8")
    environment = cluster(
        tmp_path, srun=SRUN, torchrun="#!/bin/bash\nexit 1\n", scontrol=WRITE_DOWN
    )
    job = subprocess.run(
        ["bash", SLURM / "node.sbatch"], cwd=ROOT, env=environment | {"RUN": str(tmp_path / "run")}
    )
    assert job.returncode == 1
    assert not (tmp_path / "written").exists()


def test_a_warning_reaches_the_workers_and_not_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"status": "stopped"}', encoding="utf8")
    worker = (
        "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: print('heard', flush=True) "
        "or exit(75)); "
        "print('ready', flush=True); time.sleep(120)"
    )
    launcher = f"setsid {sys.executable} -S -c {shlex.quote(worker)}; exit 1"
    job = subprocess.Popen(
        ["bash", SLURM / "warned.sh", tmp_path, "bash", "-c", launcher],
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    os.killpg(job.pid, signal.SIGUSR1)
    said, _ = job.communicate(timeout=100)
    assert "heard" in said
    assert job.returncode == 75


# ---- datatrove -----------------------------------------------------------------------------------


@pytest.fixture
def cleaned(tmp_path: Path) -> Path:
    """A folder as datatrove's writer leaves it: files by number and task, one JSON object a line,
    gzipped.
    """
    for task in range(2):
        for number in range(2):
            path = tmp_path / "cleaned" / f"{number:03}_{task:05}.jsonl.gz"
            path.parent.mkdir(exist_ok=True)
            texts = toy_text(60, seed=10 * task + number).split("\n\n")
            with gzip.open(path, "wt", encoding="utf8") as file:
                for place, text in enumerate(texts):
                    metadata = {
                        "url": "https://example.org",
                        "language": "en",
                        "language_score": 0.98,
                        "minhash_cluster_size": 1,
                    }
                    print(
                        json.dumps({"text": text, "id": f"{task}/{place}", "metadata": metadata}),
                        file=file,
                    )
    return tmp_path


def test_the_commands_after_cleaning_run_as_documented(
    cleaned: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(cleaned)
    (block,) = re.findall(r"```sh\n(.*?)```", CLEANING, flags=re.DOTALL)
    for command in block.splitlines():
        # A dry run takes a step of `large`, which needs a GPU or a while.
        smaller = command.replace("30522", "300").replace("--dry-run", "--print-config")
        program, *words = shlex.split(smaller)
        assert program == "electra"
        assert main(words) == 0, command
    shards = Shards.open("shards")
    assert list(shards.parts) == [Path("shards")]
    assert shards.manifest.documents == 4 * 60
    assert len(shards.manifest.settings.inputs) == 4
    assert "one manifest" in capsys.readouterr().out


def test_the_cleaning_script_writes_where_the_commands_read() -> None:
    (script,) = re.findall(r"```python\n(.*?)```", CLEANING, flags=re.DOTALL)
    writers = [
        node.args[0].value
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "JsonlWriter"
    ]
    assert writers == ["filtered", "cleaned"]
    assert "electra shard cleaned/" in CLEANING
