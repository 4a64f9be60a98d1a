"""Push: huggingface_hub itself sends the files to a stand-in for the hub on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from electra.__main__ import main
from electra.config import RunFailed, UserError
from electra.exports.push import push_model as push
from tests.tasks.toys import tiny_model

TOKEN = "hf_secretsecretsecret"


class Hub(ThreadingHTTPServer):
    """As much of the hub as a push needs: repositories, branches, LFS files and commits."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, Any]] = {}
        self.branches: list[str] = []
        self.objects: dict[str, bytes] = {}  # LFS
        self.files: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.status = 200  # of every answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_PUT(self) -> None:
        content = self.body()
        self.server.objects[hashlib.sha256(content).hexdigest()] = content
        self.answer({})

    def do_GET(self) -> None:
        self.answer({"id": "me/tiny", "sha": "0" * 40, "siblings": []})

    def do_POST(self) -> None:
        self.server.tokens.add(str(self.headers.get("Authorization")))
        content = self.body()
        if self.server.status != 200:
            self.answer({"error": "no"}, self.server.status)
        elif self.path == "/api/repos/create":
            asked = json.loads(content)
            self.server.repositories[f"{asked.get('organization', 'me')}/{asked['name']}"] = asked
            self.answer({"url": f"{self.server.url}/me/tiny", "id": "me/tiny", "name": "me/tiny"})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/branch/" in self.path:
            self.server.branches.append(self.path.rpartition("/")[2])
            self.answer({})
        elif "/preupload/" in self.path:
            self.answer({"files": [self.mode(each) for each in json.loads(content)["files"]]})
        elif self.path.endswith("/objects/batch"):
            wanted = json.loads(content)["objects"]
            self.answer({"transfer": "basic", "objects": [self.place(each) for each in wanted]})
        else:
            self.commit(content)

    def mode(self, file: dict[str, Any]) -> dict[str, Any]:
        mode = "lfs" if file["path"].endswith((".safetensors", ".onnx")) else "regular"
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}

    def place(self, wanted: dict[str, Any]) -> dict[str, Any]:
        href = f"{self.server.url}/lfs/{wanted['oid']}"
        return {**wanted, "actions": {"upload": {"href": href}}}

    def commit(self, content: bytes) -> None:
        for line in content.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                self.server.files[value["path"]] = self.server.objects[value["oid"]]
        sha = "1" * 40
        url = f"{self.server.url}/me/tiny/commit/{sha}"
        self.answer({"success": True, "commitOid": sha, "commitUrl": url})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder with files beside it that are nobody's business."""
    folder = tiny_model(tmp_path / "tiny")
    (folder / "README.md").write_text("# tiny\n", encoding="utf8")
    for name in ("config.toml", "environment.json", "training.safetensors.partial", "log.jsonl"):
        (folder / name).write_text(f"{Path.home()}\n", encoding="utf8")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/optimizer.safetensors").write_bytes(b"state")
    return folder


def test_a_model_arrives_whole_and_what_describes_this_machine_stays(hub: Hub, model: Path) -> None:
    done = push(model, "me/tiny", private=True, revision="draft")
    assert done.url == f"{hub.url}/me/tiny/commit/{'1' * 40}"
    asked = hub.repositories["me/tiny"]  # as version 1 of huggingface_hub asks, or as version 2
    assert asked.get("private") is True or asked["visibility"] == "private"
    assert hub.branches == ["draft"]
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert set(hub.files) == {*done.files, "checksums.sha256"}
    assert hub.files["model.safetensors"] == (model / "model.safetensors").read_bytes()
    assert "checkpoints/optimizer.safetensors" in done.left_out
    assert not [name for name, content in hub.files.items() if str(Path.home()).encode() in content]
    for line in hub.files["checksums.sha256"].decode().splitlines():
        checksum, name = line.split("  ")
        assert hashlib.sha256(hub.files[name]).hexdigest() == checksum


def test_a_dry_run_lists_the_files_and_sends_nothing(
    hub: Hub, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(model), "me/tiny", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "nothing was sent to me/tiny" in out
    assert "model.safetensors: " in err
    assert "not pushed: checkpoints/optimizer.safetensors" in err
    assert TOKEN not in out + err
    assert not hub.tokens


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(401, "hf auth login"), (403, "may not write there"), (404, "check the owner's name")],
)
def test_what_the_hub_refuses_is_one_sentence_with_a_remedy_and_without_the_token(
    status: int, remedy: str, hub: Hub, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.status = status
    assert main(["push", str(model), "me/tiny"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("error: me/tiny: ")
    assert remedy in message
    assert TOKEN not in message


def test_a_hub_that_is_not_there_fails_with_its_reason(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RunFailed, match="me/tiny: the hub cannot be reached"):
        push(model, "me/tiny")


def test_a_folder_without_weights_is_refused(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(UserError, match="to push"):
        push(model, "me/tiny", dry_run=True)


def test_a_file_that_names_a_folder_of_this_machine_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    (model / "README.md").write_text("from /home/somebody/runs/x", encoding="utf8")
    with pytest.raises(UserError, match=r"README.md: names /home/somebody"):
        push(model, "me/tiny", dry_run=True)


def test_a_file_with_a_token_of_the_hub_is_refused(model: Path) -> None:
    (model / "README.md").write_text(f"token: hf_{'x' * 34}", encoding="utf8")
    with pytest.raises(UserError, match=r"README.md: holds a token of the hub"):
        push(model, "me/tiny", dry_run=True)


def test_a_link_to_a_file_elsewhere_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("private", encoding="utf8")
    (model / "vocab.txt").unlink()
    (model / "vocab.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"vocab.txt: a link to .*secret, which is not of this"):
        push(model, "me/tiny", dry_run=True)


def test_the_links_of_the_cache_are_pushed(model: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots/0", tmp_path / "blobs"
    snapshot.parent.mkdir()
    model.rename(snapshot)
    blobs.mkdir()
    (snapshot / "vocab.txt").rename(blobs / "1")
    (snapshot / "vocab.txt").symlink_to("../../blobs/1")
    assert "vocab.txt" in push(snapshot, "me/tiny", dry_run=True).files


def test_a_repository_is_owner_and_name(model: Path) -> None:
    with pytest.raises(UserError, match="me/ti--ny: the hub takes no such name"):
        push(model, "me/ti--ny", dry_run=True)
    with pytest.raises(UserError, match="tiny: a repository of the hub is written owner/name"):
        push(model, "tiny", dry_run=True)
