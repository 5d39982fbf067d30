"""Live settings of a real vLLM, and the plugin's manners."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.engine import api
from autotune.engine.fork_server import ForkServer
from autotune.engine.live import LiveRefused, LiveSettings, inject
from autotune.engine.tiny_model import make_tiny_model
from autotune.engine.vllm import VllmLauncher
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.endpoint import Endpoint

FLAGS: dict[str, FlagValue] = {
    "max-model-len": 1024,
    "enforce-eager": True,
    "kv-cache-memory-bytes": "16M",
    "max-num-seqs": 32,
    "max-num-batched-tokens": 1024,
}
PATH = "/vtune/live-settings"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("live")
    model = str(make_tiny_model(folder / "tiny"))
    with ForkServer(vllm_python=Path(sys.executable), log=folder / "fork.log", env=dict(os.environ)) as server:
        launcher = VllmLauncher(
            vllm_python=Path(sys.executable), logs=folder, platform="cpu", fork_server=server, live=True
        )
        config = EngineConfig(model=model, flags=FLAGS)
        with launcher(config, ["cpu"], name="t", cancelled=lambda: False) as started:
            assert isinstance(started, Endpoint), started
            yield started


@pytest.fixture
def live(engine: Endpoint) -> Iterator[LiveSettings]:
    """As it was at its start, before and after."""
    settings = LiveSettings(port=port_of(engine), api_key=engine.api_key)
    state = settings.read()
    yield settings
    settings.change_when_idle(state.settings, within_s=30)


def port_of(engine: Endpoint) -> int:
    return int(engine.url.rpartition(":")[2])


def complete(engine: Endpoint, tokens: int, prompt: list[int]) -> int:
    """Sends one request and returns the number of tokens it got."""
    body = {"model": engine.served_model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"{engine.url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {engine.api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return int(json.load(response)["usage"]["completion_tokens"])


@pytest.mark.engine
@pytest.mark.timeout(300)
class TestARunningEngine:
    def test_takes_every_setting_and_says_so(self, live: LiveSettings) -> None:
        wanted: dict[str, FlagValue] = {
            "max-num-seqs": 4,
            "max-num-batched-tokens": 256,
            "long-prefill-token-threshold": 64,
            "enable-prefix-caching": False,
            "scheduling-policy": "priority",
        }
        now = live.change_when_idle(wanted)
        assert {name: now.settings[name] for name in wanted} == wanted
        assert now.caps["max-num-seqs"] == 32
        assert not now.missing

    def test_answers_as_many_tokens_as_before(self, engine: Endpoint, live: LiveSettings) -> None:
        each: tuple[dict[str, FlagValue], ...] = (
            {"max-num-seqs": 1, "max-num-batched-tokens": 64},
            {"enable-chunked-prefill": False},
            {"enable-prefix-caching": False},
            {"enable-prefix-caching": True, "scheduling-policy": "priority"},
        )
        for settings in each:
            live.change_when_idle(settings)
            assert complete(engine, 8, list(range(10, 210))) == 8
            live.change_when_idle({"max-num-batched-tokens": 1024, "max-num-seqs": 32, "enable-chunked-prefill": True})

    def test_keeps_fewer_blocks_and_gives_them_back(self, live: LiveSettings) -> None:
        whole = live.read().settings["usable-kv-blocks"]
        assert isinstance(whole, int)
        assert live.change_when_idle({"usable-kv-blocks": whole - 3}).settings["usable-kv-blocks"] == whole - 3
        assert live.change_when_idle({"usable-kv-blocks": whole}).settings["usable-kv-blocks"] == whole

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"max-num-seqs": 64}, "its value at start"),
            ({"max-num-seqs": 0}, "its value at start"),
            ({"max-num-batched-tokens": 16}, "is less than max-num-seqs 32"),
            ({"max-num-batched-tokens": 512, "enable-chunked-prefill": False}, "must be max-model-len 1024"),
            ({"long-prefill-token-threshold": 4096}, "max-model-len 1024"),
            ({"scheduling-policy": "random"}, "neither fcfs nor priority"),
            ({"usable-kv-blocks": 1}, "isn't within"),
            ({"max-num-seqs": "4"}, "must be a whole number"),
            ({"enable-prefix-caching": 1}, "must be true or false"),
            ({"dtype": "half"}, "no live setting"),
        ],
    )
    def test_refuses_what_a_cold_start_would_and_changes_nothing(
        self, live: LiveSettings, settings: dict[str, FlagValue], says: str
    ) -> None:
        before = live.read()
        with pytest.raises(LiveRefused, match=says):
            live.change({"long-prefill-token-threshold": 7, **settings})
        assert live.read().settings == before.settings

    def test_empties_its_prefix_cache_only_when_idle(self, engine: Endpoint, live: LiveSettings) -> None:
        answers: list[int] = []
        sender = threading.Thread(target=lambda: answers.append(complete(engine, 600, list(range(20)))))
        sender.start()
        while not live.read().running:
            pass
        with pytest.raises(LiveRefused, match="only of an idle engine"):
            live.change({}, reset_prefix_cache=True)
        with pytest.raises(LiveRefused, match="still run"):
            live.change_when_idle({}, within_s=0.0)
        assert live.change({"max-num-seqs": 8}).settings["max-num-seqs"] == 8
        sender.join()
        assert answers == [600]
        assert live.change_when_idle({}).running == 0

    def test_forgets_the_prompts_of_the_trial_before(self, engine: Endpoint, live: LiveSettings) -> None:
        def hits() -> float:
            sample = engine.scrape()
            assert sample is not None
            assert sample.prefix_hits is not None
            return sample.prefix_hits

        prompt = list(range(300, 600))
        complete(engine, 2, prompt)
        first = hits()
        complete(engine, 2, prompt)
        assert hits() > first
        live.change_when_idle({})
        again = hits()
        complete(engine, 2, prompt)
        assert hits() == again

    def test_asks_for_its_key(self, engine: Endpoint) -> None:
        for key in (None, "wrong", ""):
            answer = api.ask(port_of(engine), PATH, method="POST", body={"set": {"max-num-seqs": 2}}, api_key=key)
            assert answer is not None
            assert answer[0] == 401

    def test_survives_a_body_that_is_no_object(self, engine: Endpoint) -> None:
        answer = api.ask(port_of(engine), PATH, method="DELETE", api_key=engine.api_key)
        assert answer is not None
        assert answer[0] == 405
        assert api.healthy(port_of(engine))


def test_the_plugin_is_found_where_vtune_is_not_installed(tmp_path: Path) -> None:
    env = inject(tmp_path, {"PYTHONPATH": "/somewhere", "VLLM_PLUGINS": "mine"})
    assert env["PYTHONPATH"].endswith(":/somewhere")
    assert env["VLLM_PLUGINS"] == "mine,vtune_live_settings"
    code = (
        "import sys; from importlib.metadata import entry_points; "
        "[plugin] = entry_points(group='vllm.general_plugins'); plugin.load()(); "
        "assert 'autotune' not in sys.modules; print(plugin.name)"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": env["PYTHONPATH"]}, capture_output=True, text=True
    )
    assert found.stdout == "vtune_live_settings\n", found.stderr


def test_plugins_of_the_user_stay_all_on_where_none_was_named(tmp_path: Path) -> None:
    assert "VLLM_PLUGINS" not in inject(tmp_path, {})
