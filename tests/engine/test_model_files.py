import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.engine.model_files import read_model_shape, resolve_model
from autotune.engine.tiny_model import config
from autotune.errors import EnvironmentProblem, UserError


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


class _Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = {"/o/there": 200, "/o/busy": 503}.get(self.path.removesuffix("/resolve/main/config.json"), 404)
        self.send_response(status)
        self.end_headers()
        if status == 200:
            self.wfile.write(json.dumps(config()).encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        thread.join()


def test_the_built_in_model_is_made_and_has_its_shape(tmp_path: Path) -> None:
    folder = Path(resolve_model("builtin:tiny"))
    assert folder.is_relative_to(tmp_path / "cache")
    assert (folder / "config.json").is_file()
    assert read_model_shape("builtin:tiny").heads == 4


def test_an_unknown_built_in_model_is_a_user_error() -> None:
    with pytest.raises(UserError, match="builtin:tiny"):
        resolve_model("builtin:huge")


def test_a_local_folder_becomes_absolute_and_its_weights_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config()))
    (folder / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 777}}')
    assert resolve_model("./mine") == str(folder)
    assert read_model_shape("./mine").weight_bytes == 777


@pytest.mark.parametrize("model", ["/nowhere/model", "./gone", "~/no/such/model", "a/b/c"])
def test_a_folder_that_isnt_there_is_a_user_error(model: str) -> None:
    with pytest.raises(UserError, match="no such model folder") as caught:
        read_model_shape(model)
    assert caught.value.exit_code == 2


def test_a_hub_name_stays_a_name() -> None:
    assert resolve_model("Qwen/Qwen2.5-7B-Instruct") == "Qwen/Qwen2.5-7B-Instruct"


def test_a_given_config_goes_before_everything(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(config()))
    assert read_model_shape("no/such-model", model_config=tmp_path / "c.json").layers == 2


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_config_that_is_none_is_a_user_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(UserError):
        read_model_shape("x/y", model_config=tmp_path / "c.json")


def test_a_model_downloaded_before_is_found_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = tmp_path / "hf" / "hub" / "models--o--m" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(config()))
    assert read_model_shape("o/m").hidden == 128


@pytest.mark.usefixtures("hub")
def test_the_hub_is_asked_for_what_isnt_here() -> None:
    assert read_model_shape("o/there").heads == 4


@pytest.mark.usefixtures("hub")
def test_a_model_that_the_hub_doesnt_have_is_a_user_error() -> None:
    with pytest.raises(UserError, match="no such model") as caught:
        read_model_shape("o/typo")
    assert caught.value.value == "o/typo"


@pytest.mark.usefixtures("hub")
def test_a_hub_in_trouble_is_an_environment_problem() -> None:
    with pytest.raises(EnvironmentProblem, match=r"503.*--model-config PATH"):
        read_model_shape("o/busy")


def test_an_unreachable_hub_is_an_environment_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentProblem, match="--model-config PATH") as caught:
        read_model_shape("o/m")
    assert caught.value.exit_code == 4
