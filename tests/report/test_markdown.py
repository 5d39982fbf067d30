from __future__ import annotations

from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from synthetic_run import TTFT_SLO, measured, record, under_stress, write_run

from autotune.history.rundir import RunDir
from autotune.history.tables import append_environment
from autotune.report.form import study_form
from autotune.report.markdown import code_block, escaped, markdown
from autotune.report.study import read_study
from autotune.spec.verdict import Infeasible

DEFAULT = measured(0, 1000.0, 50.0, role="default")
HOSTILE = "<script>alert(1)</script> **bold** | `code` [x](http://evil) \x1b[31m ![i](y) $x$ @team\n# head"


@pytest.fixture
def report(tmp_path: Path) -> str:
    run = write_run(
        tmp_path / "run",
        [
            DEFAULT,
            measured(1, 1500.0, 80.0, {"max-num-seqs": 256}),
            record(2, Infeasible(cause="capacity.kv_too_small", evidence="needs 3 GiB, 2 GiB free"), {"a": 1}),
        ],
        slos=(TTFT_SLO,),
        versions={"vllm": "0.24.0", "driver": "570.1"},
    )
    return markdown(read_study(run))


def test_the_report_begins_with_the_verdict(report: str) -> None:
    assert report.splitlines()[2].startswith("**Trial 1: +50.0 % in output_tok_per_s_per_gpu against the default.")


@pytest.mark.parametrize(
    "fact",
    [
        "| output_tok_per_s_per_gpu | 1,000 | 1,500 | +50.0 %, unconfirmed |",
        "| infeasible | capacity.kv_too_small | 1 | 2 | needs 3 GiB, 2 GiB free |",
        "| ttft_p99_ms &lt;= 100 | 1 | 1,500 |",
        "| vllm | 0.24.0 |",
        "| driver | 570.1 |",
        "vllm serve facebook/opt-125m --max-num-seqs 256",
        "vtune search --space tiny-cpu",
        "3 trials: 1 infeasible, 2 measured.",
    ],
)
def test_the_report_says(report: str, fact: str) -> None:
    assert fact in report


def test_every_row_of_a_table_has_as_many_cells_as_its_header(report: str) -> None:
    width = 0
    for line in report.splitlines():
        if not line.startswith("|"):
            width = 0
        elif width == 0:
            width = line.count("|")
        else:
            assert line.count("|") == width


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    flags = {"hf-token": "hf_supersecretvalue", "note": HOSTILE, "long": "y" * 100_000}
    run = write_run(
        tmp_path / "run",
        [
            DEFAULT,
            measured(1, 1500.0, 80.0, flags),
            record(
                2,
                Infeasible(cause=HOSTILE, evidence=HOSTILE + "z" * 100_000 + " HF_TOKEN=hf_anothersecret1"),
                {"a": 1},
                env={"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI"},
            ),
            record(3, Infeasible(cause="key", evidence="login with hf_anothersecret1 failed"), {"a": 2}),
        ],
        name=HOSTILE,
        versions={"vllm": HOSTILE, "api_key": "topsecretvalue"},
        command=("vtune", "search", "--space", "```\n# x", HOSTILE),
        message=HOSTILE,
    )
    return markdown(read_study(run))


def test_hostile_text_becomes_nothing_but_text(hostile: str) -> None:
    tokens = MarkdownIt("commonmark").enable("table").parse(hostile)
    inner = {child.type for token in tokens for child in token.children or ()}
    assert inner == {"text", "strong_open", "strong_close"}  # the verdict is the report's own
    assert "html_block" not in {token.type for token in tokens}
    assert [token.tag for token in tokens if token.type == "heading_open"].count("h1") == 1


def test_hostile_text_leaves_no_control_character(hostile: str) -> None:
    assert all(line.isprintable() for line in hostile.splitlines())


@pytest.mark.parametrize("secret", ["hf_anothersecret1", "hf_supersecretvalue", "wJalrXUtnFEMI", "topsecretvalue"])
def test_no_secret_is_in_the_report(hostile: str, secret: str) -> None:
    assert secret not in hostile


def test_a_line_of_100_kb_is_cut(hostile: str) -> None:
    tables = [line for line in hostile.splitlines() if line.startswith("|")]
    assert max(map(len, tables)) < 5000


@pytest.mark.parametrize("content", ["plain", "```", "a ````` b"])
def test_a_code_block_is_not_closed_by_its_content(content: str) -> None:
    first, *_, last = code_block(content)
    assert first.removesuffix("sh") == last
    assert last not in content


def test_metric_names_are_left_readable() -> None:
    assert escaped("ttft_p99_ms") == "ttft_p99_ms"


def test_a_run_without_a_valid_trial_has_a_report_too(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [record(0, Infeasible(cause="oom", evidence="e"), role="default")])
    assert "No valid measurement: none of 1 trial gave one." in markdown(read_study(run))


def test_the_report_names_the_machine_and_its_versions(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [DEFAULT])
    append_environment(RunDir(run), {"gpus": "H200", "driver": "", "version.torch": "2.11", "env.X": "1"}, node="n")
    report = markdown(read_study(run))
    assert "| gpus | H200 |" in report
    assert "| torch | 2.11 |" in report
    assert "| driver |" not in report


def test_a_confirmation_is_shown_with_its_intervals_and_what_chance_had_added(tmp_path: Path) -> None:
    records = [DEFAULT, measured(1, 1500.0, 80.0, {"max-num-seqs": 256})]
    for factor in (0.99, 1.0, 1.01):
        records.append(measured(len(records), 1000.0 * factor, 50.0 * factor, role="confirm"))
        records.append(measured(len(records), 1200.0 * factor, 60.0 * factor, {"max-num-seqs": 256}, role="confirm"))
    report = markdown(read_study(write_run(tmp_path / "run", records)))
    assert "Conclusion: **better**." in report
    assert "| 1 | 3 | output_tok_per_s_per_gpu | +20.0 % | +17.3 % to +22.8 % | +50.0 % | -30.0 % | yes |" in report
    assert "2 trials: 2 measured. 6 further runs repeated some of them." in report


def test_the_stress_of_each_arm_is_a_line_of_the_report_and_a_value_of_the_answer(tmp_path: Path) -> None:
    records = [DEFAULT, measured(1, 1500.0, 80.0, {"a": 1})]
    for factor in (0.99, 1.0, 1.01):
        records.append(measured(len(records), 1000.0 * factor, 50.0 * factor, role="confirm"))
        records.append(measured(len(records), 1200.0 * factor, 60.0 * factor, {"a": 1}, role="confirm"))
    records[-2:] = [under_stress(records[-2]), under_stress(records[-1], died_of="oom.runtime")]
    study = read_study(write_run(tmp_path / "run", records))
    report = markdown(study)
    assert (
        "- the default: stress: 40 at once, 80 requests, all answered, KV cache seen up to 97 % full, 3 preemptions\n"
        in report
    )
    assert (
        "- trial 1: stress: 40 at once, the engine died of oom.runtime (CUDA out of memory) after 10 answers, "
        "KV cache seen up to 97 % full, 3 preemptions\n"
    ) in report
    assert "Conclusion: **keep the default**." in report
    found = study_form(study)["confirmation"]
    assert found["baseline_stress"]["survived"] is True
    assert found["finalists"][0]["stress"] == {
        "survived": False,
        "died_of": "oom.runtime",
        "concurrency": 40,
        "requests": 50,
        "unanswered": 40,
        "kv_cache_usage_max": 0.968,
        "preemptions": 3,
        "text": "stress: 40 at once, the engine died of oom.runtime (CUDA out of memory) after 10 answers, "
        "KV cache seen up to 97 % full, 3 preemptions",
    }


def test_a_run_whose_driver_died_is_called_killed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [DEFAULT], state="running")
    assert read_study(run).state == "killed"
    assert "This run is killed" in markdown(read_study(run))


def test_ben_07_the_very_first_run_is_shown_beside_later_ones_of_its_configuration(tmp_path: Path) -> None:
    slow = measured(0, 250.0, 50.0, role="default")
    run = write_run(
        tmp_path / "run", [slow, measured(1, 900.0, 50.0, {"a": 1}), measured(8, 1000.0, 50.0, role="baseline")]
    )
    page = markdown(read_study(run))
    assert "The very first run had 250 in output_tok_per_s_per_gpu" in page
    assert "1 later run of the same configuration 1,000 on average (+300.0 %)" in page


def test_ben_07_the_drift_of_the_later_runs_is_shown_with_its_interval(tmp_path: Path) -> None:
    later = [measured(trial, 1000.0 - 10 * trial, 50.0, role="baseline") for trial in (8, 16, 24, 32)]
    page = markdown(read_study(write_run(tmp_path / "run", [DEFAULT, *later])))
    assert "the machine drifted" in page
