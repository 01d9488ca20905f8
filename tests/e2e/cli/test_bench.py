"""`sluice bench`: the counts and the output of small runs. No test checks the speed."""
import json
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest

from conftest import BIN, ROOT, model_path, names, patience, sanitized, until
from test_cli import Terminal, sluice

TINY = ROOT / "tests/golden/tiny/q8_0.gguf"


def engine(tmp_path, *args, check=True):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    result = subprocess.run([BIN / "sluice", "bench", "engine", *map(str, args)], capture_output=True, text=True,
                            timeout=patience(120), env=env)
    assert not check or result.returncode == 0, result.stderr
    return result


# --- the engine ---


def test_engine_has_a_row_for_everything_asked_for(tmp_path):
    result = engine(tmp_path, TINY, "--threads", "1,2", "--prompt", "32,7", "--generate", "5", "--batch", "1,3", "--depth", "40,0",
                    "--repetitions", 3, "--json")
    report = json.loads(result.stdout)
    rows = report["rows"]
    keys = [(r["n_threads"], r["depth"], r["batch"], r["phase"], r["n_tokens"]) for r in rows]
    assert keys == [(t, d, b, phase, n * b) for t in (1, 2) for d in (0, 40) for b in (1, 3)
                    for phase, n in (("prefill", 32), ("prefill", 7), ("decode", 5))]
    for row in rows:
        assert len(row["samples"]) == 3 and min(row["samples"]) > 0
        assert row["tokens_per_second"] == sorted(row["samples"])[1]
        assert row["min_tokens_per_second"] == min(row["samples"]) and row["max_tokens_per_second"] == max(row["samples"])
        assert row["mean_tokens_per_second"] == pytest.approx(sum(row["samples"]) / 3, rel=1e-6)
        assert (row["step_p50_ns"] > 0) == (row["phase"] == "decode") and row["step_p99_ns"] >= row["step_p50_ns"]
    assert report["info"]["n_layers"] == 2 and report["info"]["hidden_dim"] == 96 and report["info"]["quantization"] == "Q8_0"
    assert report["file_name"] == "q8_0.gguf" and report["file_bytes"] == TINY.stat().st_size
    assert 0 < report["step_bytes"] < report["file_bytes"] and report["kv_token_bytes"] == 2 * 2 * 2 * 16 * 2
    assert report["kv_dtype"] == "BF16" and report["kernels"] and report["n_cpus"] >= 1 and not report["interrupted"]
    assert result.stderr == ""


def test_engine_prints_a_table_and_leaves_out_what_is_0(tmp_path):
    lines = engine(tmp_path, TINY, "--prompt", "0", "--generate", "3", "--repetitions", 1, "--kernels", "ref",
                   "--kv-dtype", "f32").stdout.splitlines()
    assert names(lines[0], "Sluice tiny q8_0", "llama", 2, 96, 6, 16, 128, 288) and names(lines[2], "ref", "f32"), lines
    assert lines[5].split()[:5] == ["PHASE", "THREADS", "DEPTH", "BATCH", "TOKENS"]
    assert len(lines) == 7 and lines[6].split()[:1] == ["decode"] and lines[6].split()[2:5] == ["0", "1", "3"]


def test_engine_compares_answers_without_and_with_drafts(tmp_path):
    twin = ("--draft", TINY, "--draft-always", "--speculate", 6)
    report = json.loads(engine(tmp_path, TINY, "--prompt", 0, "--generate", 40, "--batch", "1,3", "--repetitions", 2, "--json", *twin).stdout)
    assert [r["phase"] for r in report["rows"]] == ["decode", "decode"]
    assert [(s["batch"], s["n_tokens"]) for s in report["speculation"]] == [(1, 40), (3, 120)]
    for s in report["speculation"]:
        assert s["drafter"] == "draft model" and s["draft_file"] == "q8_0.gguf" and s["max_draft_tokens"] == 6
        assert s["n_accepted_tokens"] == s["n_drafted_tokens"] > s["n_tokens"] / 4
        assert s["tokens_per_second"] > 0 and s["tokens_per_second_without"] > 0
    lines = engine(tmp_path, TINY, "--prompt", 0, "--generate", 40, "--repetitions", 1, "--speculate", 3).stdout.splitlines()
    assert lines[8].split()[:4] == ["DRAFTS", "BY", "UP", "TO"] and lines[9].split()[:6] == ["prompt", "lookup", "3", lines[9].split()[3], "1", "40"]
    alone = json.loads(engine(tmp_path, TINY, "--prompt", 0, "--generate", 4, "--repetitions", 1, "--json").stdout)
    assert alone["speculation"] == []
    refused = engine(tmp_path, TINY, "--draft", ROOT / "tests/golden/tiny/f16.bin", check=False)
    assert refused.returncode != 0 and names(refused.stderr, "f16.bin")


def test_drafts_have_the_threads_and_cpus_of_their_rows(tmp_path):
    """For each number of threads the bench places the threads before it times rows, and again before it times
    drafts."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    threads = ",".join(str(n + 1) for n in range(len(cpus)))
    result = subprocess.run([BIN / "sluice-worker", "bench", TINY, "--text", "--cpus", ",".join(map(str, cpus)), "--threads", threads, "--prompt",
                             "0", "--generate", "20", "--repetitions", "1", "--speculate", "3"], capture_output=True, text=True, timeout=patience(120))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("drafter: ") == len(cpus) and result.stdout.count('phase: "decode"') == len(cpus)


@pytest.mark.parametrize("arguments, code, values", [
    (["--batch", "1,none"], 2, ['"none"']),
    (["--batch", "257"], 2, [257, 1, 256]),
    (["--depth", "8,8"], 2, [8]),
    (["--prompt", "0", "--generate", "0"], 2, ["--generate", 0]),
    (["--repetitions", "0"], 2, [0]),
    (["--depth", "500"], 1, [500, "--prompt 512"]),
    (["--prompt", "600"], 1, [600, 512]),
    (["--draft-always"], 2, ["--draft"]),
    (["--kernels", "none"], 1, ["none"]),
    (["--tp", "3"], 1, [3, 1, 2, 4, 8]),
])
def test_engine_refuses_by_name(tmp_path, arguments, code, values):
    result = engine(tmp_path, TINY, *arguments, check=False)
    assert result.returncode == code and names(result.stderr, arguments[0], *values) and result.stdout == "", result.stderr
    assert result.stderr.count("\n") == 1, result.stderr  # the worker is silent, and the command prints the error


def test_engine_names_a_file_it_cannot_read(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    for path in ("absent.gguf", "bad.gguf"):
        result = engine(tmp_path, tmp_path / path, check=False)
        assert result.returncode == 1 and names(result.stderr, path), result.stderr


@pytest.mark.parametrize("to", ["group", "command"])
def test_engine_told_to_end_prints_the_rows_there_are(tmp_path, to):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    process = subprocess.Popen([BIN / "sluice", "bench", "engine", TINY, "--prompt", "8", "--generate", "500", "--repetitions", "1000",
                                "--batch", "1,2", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                               start_new_session=True)
    until(lambda: sum(sum(p.cpu_times()[:2]) for p in psutil.Process(process.pid).children()) >= 0.5, 30, "it is at work", 0.05)
    if to == "group":  # as Ctrl-C in a terminal does
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    out, err = process.communicate(timeout=patience(30))
    report = json.loads(out)
    assert process.returncode == 130 and report["interrupted"] and err == ""
    assert 1 <= len(report["rows"]) <= 3 and sum(len(row["samples"]) for row in report["rows"]) < 3 * 1000


# --- a server ---


def serve(served, *args, **kwargs):
    """Runs the bench over the server's TCP port, and not over the unix socket. Returns the
    JSON report."""
    result = sluice(served, "bench", "serve", "smol", "--json", *args, **kwargs)
    return json.loads(result.stdout)


def test_a_closed_loop_counts_every_token(served):
    report = serve(served, "--clients", 3, "--requests", 7, "--warmup", 2, "--prompt-tokens", "20-30", "--max-tokens", "6")
    assert report["requests"] == {"started": 7, "ok": 7, "failed": 0, "cancelled": 0, "ended_early": 0, "delayed": 0, "missed": 0}
    assert report["errors"] == {} and "first_error" not in report and not report["interrupted"]
    assert report["output_tokens"] == 7 * 6 and 7 * 20 <= report["input_tokens"] <= 7 * 30 and report["cached_tokens"] == 0
    assert report["max_in_flight"] == 3 and report["connections"] == 1
    assert [report[name]["n"] for name in ("ttft_ms", "e2e_ms")] == [7, 7]
    assert 1 <= report["tpot_ms"]["n"] <= 7  # an answer in a single message has no time per output token
    assert 0 < report["itl_ms"]["n"] <= 7 * 5 and report["messages"] <= report["output_tokens"]
    for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
        t = report[name]
        assert 0 < t["min"] <= t["p50"] <= t["p90"] <= t["p99"] <= t["max"] and t["min"] <= t["mean"] <= t["max"]
    assert report["ttft_ms"]["max"] <= report["e2e_ms"]["max"] <= report["seconds"] * 1000 + 1
    assert report["output_tokens_per_second"] == pytest.approx(42 / report["seconds"], rel=0.01)
    assert report["requests_per_second"] == pytest.approx(7 / report["seconds"], rel=0.01)
    assert report["setup"]["arrivals"] == "closed" and report["setup"]["clients"] == 3 and report["setup"]["prompt_tokens"] == [20, 30]
    assert report["numerics_id"].startswith("cpu/") and "goodput" not in report


def test_arrivals_follow_their_rate_and_not_the_server(served):
    report = serve(served, "--rate", 20, "--requests", 30, "--prompt-tokens", 4, "--max-tokens", 2, "--seed", 3,
                   "--slo-ttft-ms", 1e9, "--slo-e2e-ms", 1e9)
    assert report["requests"]["ok"] == 30 and report["setup"]["rate"] == 20 and report["setup"]["arrivals"] == "poisson"
    assert report["seconds"] >= 0.6  # thirty arrivals of this seed take about 1.5 s
    assert report["goodput"] == {"requests": 30, "requests_per_second": report["requests_per_second"], "share": 1.0}
    assert report["slo"] == {"ttft_ms": 1e9, "e2e_ms": 1e9}


def test_what_arrives_while_the_most_are_in_flight_waits_and_its_time_counts(served):
    report = serve(served, "--rate", 500, "--clients", 1, "--requests", 4, "--prompt-tokens", 4, "--max-tokens", 24)
    assert report["requests"]["ok"] == 4 and report["requests"]["delayed"] >= 2 and report["max_in_flight"] == 1
    assert report["ttft_ms"]["max"] > report["e2e_ms"]["min"]  # the last request waited for the others


def test_arrivals_that_never_had_room_are_told(served):
    """A slow server must not look better. Arrivals that still wait at the end of the run count against the
    goodput."""
    report = serve(served, "--rate", 200, "--clients", 1, "--duration", "1s", "--prompt-tokens", 4, "--max-tokens", 64, "--slo-e2e-ms", 1e9,
                   "--warmup", 3)
    requests = report["requests"]
    assert requests["ok"] == requests["started"] and requests["missed"] > 0 and 120 < requests["started"] + requests["missed"] < 300
    assert report["goodput"]["share"] == pytest.approx(requests["ok"] / (requests["started"] + requests["missed"]), abs=1e-4)


def test_an_slo_that_nothing_meets(served):
    report = serve(served, "--requests", 3, "--prompt-tokens", 4, "--max-tokens", 3, "--slo-ttft-ms", 0.001)
    assert report["goodput"] == {"requests": 0, "requests_per_second": 0, "share": 0}


def test_a_duration_ends_the_starts_and_waits_for_the_ends(served):
    report = serve(served, "--clients", 2, "--duration", "1s", "--prompt-tokens", 4, "--max-tokens", 4)
    assert report["requests"]["started"] == report["requests"]["ok"] >= 2 and report["seconds"] >= 1


def test_only_a_shared_prefix_is_found_in_the_cache(served):
    args = ["--requests", 4, "--prompt-tokens", 96, "--max-tokens", 2]
    assert serve(served, *args, "--seed", 21)["cached_tokens"] == 0
    shared = serve(served, *args, "--seed", 22, "--shared-prefix", 64)
    assert shared["cached_tokens"] == 3 * 64 and shared["setup"]["shared_prefix"] == 64
    assert serve(served, *args, "--seed", 22, "--shared-prefix", 64)["cached_tokens"] == 3 * 64  # the same load again
    again = [serve(served, *args, "--seed", 23, "--keep-cache")["cached_tokens"] for _ in range(2)]
    assert again[0] == 0 < again[1]


def test_prompts_of_a_file_go_round(served, tmp_path):
    (tmp_path / "a.txt").write_text("Why is the sky blue?\n\nTell a story.\n")
    report = serve(served, "--requests", 5, "--prompts", tmp_path / "a.txt", "--max-tokens", 3)
    assert report["requests"]["ok"] == 5 and report["setup"]["prompts_in_file"] == 2 and report["output_tokens"] == 15
    (tmp_path / "b.jsonl").write_text('{"prompt": "Hi", "max_tokens": 2}\n{"prompt": "Hello", "id": 7}\n')
    report = serve(served, "--requests", 4, "--prompts", tmp_path / "b.jsonl", "--chat", "--max-tokens", 5)
    assert report["output_tokens"] == 2 * 2 + 2 * 5 and report["input_tokens"] > 40  # the input includes the template's tokens


def test_a_model_may_end_by_itself_where_that_is_asked_for(served, tmp_path):
    (tmp_path / "a.txt").write_text("Why is the sky blue?\n")  # with the raw text as the prompt, the sample model ends at once
    args = ["--requests", 2, "--prompts", tmp_path / "a.txt", "--max-tokens", 3]
    ended = serve(served, *args, "--ignore-eos=false")
    assert ended["requests"]["ok"] == ended["requests"]["ended_early"] == 2 and ended["output_tokens"] == 0
    assert ended["ttft_ms"]["n"] == 0 and ended["e2e_ms"]["n"] == 2 and not ended["setup"]["ignore_eos"]
    assert serve(served, *args)["output_tokens"] == 6


def test_figures_that_there_are_none_of_are_null(served):
    report = serve(served, "--requests", 2, "--prompt-tokens", 4, "--max-tokens", 1, "--priority", -7)
    assert report["requests"]["ok"] == 2 and report["ttft_ms"]["p99"] > 0
    assert report["itl_ms"]["n"] == 0 and {report["itl_ms"][k] for k in ("mean", "min", "p50", "p99", "max")} == {None}


def test_one_failed_request_fails_the_run(served, tmp_path):
    (tmp_path / "a.txt").write_text("Hi\n" + "word " * 9000 + "\n")
    result = sluice(served, "bench", "serve", "smol", "--json", "--requests", 2, "--prompts", tmp_path / "a.txt", "--max-tokens", 2, check=False)
    requests = json.loads(result.stdout)["requests"]
    assert (requests["ok"], requests["failed"]) == (1, 1) and result.returncode == 1


def test_errors_are_counted_by_code(served):
    result = sluice(served, "bench", "serve", "smol", "--json", "--requests", 4, "--clients", 2, "--prompt-tokens", 500,
                    "--max-tokens", 4, "--timeout", "1ms", check=False)
    report = json.loads(result.stdout)
    assert result.returncode == 1  # no request succeeded
    assert report["errors"] == {"DEADLINE_EXCEEDED": 4} and report["requests"]["failed"] == 4 and report["first_error"]


def test_the_table_says_it_for_people(served):
    out = sluice(served, "bench", "serve", "smol", "--requests", 2, "--prompt-tokens", 5, "--max-tokens", 3, "--slo-ttft-ms", 1e6).stdout
    assert re.search(r"^load +1 ", out, re.M) and re.search(r"^requests +2\b\D+0\b\D+0\b", out, re.M)
    assert re.search(r"^tokens +10\b\D+0\b\D+6\b", out, re.M) and re.search(r"\b2\b\D+2\b.*TTFT 1e\+06 ms", out)
    assert re.search(r"^model +smol ", out, re.M)
    rows = [line.split()[0] for line in out.split("\n\n")[1].splitlines()]
    assert rows == ["MS", "TTFT", "ITL", "TPOT", "E2E"]


def test_what_a_run_asked_for_stands_beside_its_figures(served):
    asked = ("--requests", 1, "--prompt-tokens", 5, "--max-tokens", 3, "--temperature", 0.5, "--speculate", 2, "--priority", -3, "--version", 1)
    setup = serve(served, *asked)["setup"]
    assert (setup["temperature"], setup["speculate"], setup["priority"], setup["version"]) == (0.5, 2, -3, "1")
    out = sluice(served, "bench", "serve", "smol", *asked).stdout
    assert re.search(r"^model +smol:1 ", out, re.M) and names(out, "temperature", 0.5, "speculate", 2, "priority", -3)


@pytest.mark.skipif(sanitized(), reason="the thread sanitizer holds a signal back until a call that waits ends")
def test_ctrl_c_prints_what_there_is(served):
    terminal = Terminal(served, "bench", "serve", "smol", "--clients", "2", "--prompt-tokens", "8", "--max-tokens", "200",
                        "--requests", "1000")
    try:
        terminal.expect(r"\[\.+\] [1-9]\d* .*\b2\b.*\d+")
        terminal.send("\x03")
        seen = terminal.expect(r"E2E .*\n")
        ok, cancelled = map(int, re.search(r"requests +(\d+) ok, 0 failed, (\d) cancelled", seen).groups())
        assert ok >= 1 and cancelled <= 2 <= ok + cancelled  # both may end in the step in which the key is seen
        assert terminal.wait() == 130
    finally:
        terminal.close()


@pytest.mark.parametrize("arguments, values", [
    (["--prompt-tokens", "9-3"], ["9-3"]),
    (["--max-tokens", "0"], [0, 1, 2147483647]),
    (["--rate", "-1"], ["-1", 0, "1e+06"]),
    (["--slo-itl-ms", "-5"], ["-5", 0]),
    (["--temperature", "-1"], ["-1", 0, 100]),
    (["--temperature", "100.5"], ["100.5", 0, 100]),
    (["--clients", "5000"], [5000]),
    (["--shared-prefix", "8", "--prompt-tokens", "8-20"], [8, 7]),
    (["--prompts", "x", "--shared-prefix", "4"], ["--shared-prefix"]),
    (["--prompts", "x", "--prompt-tokens", "4"], ["--prompt-tokens"]),
    (["--chat"], ["--prompts"]),
])
def test_bad_settings_are_refused_by_name(served, arguments, values):
    result = sluice(served, "bench", "serve", "smol", *arguments, check=False)
    assert result.returncode == 2 and names(result.stderr, arguments[0], *values), result.stderr


def test_no_model_no_server_no_file(served, tmp_path):
    result = sluice(served, "bench", "serve", "nobody", check=False)
    assert result.returncode == 1 and names(result.stderr, "MODEL_NOT_FOUND"), result.stderr
    (tmp_path / "a.txt").write_text("Hi\n")
    for prompts in ([], ["--prompts", tmp_path / "a.txt"]):
        result = sluice(served, "bench", "serve", "smol", "--version", "7", *prompts, check=False)
        assert result.returncode == 1 and names(result.stderr, "--version", "smol", 7) and result.stdout == ""
    result = sluice(served, "bench", "serve", "smol", "--server", "127.0.0.1:9", check=False)
    assert result.returncode == 1 and names(result.stderr, "UNAVAILABLE")
    result = sluice(served, "bench", "serve", "smol", "--prompts", tmp_path / "absent.txt", check=False)
    assert result.returncode == 1 and names(result.stderr, "absent.txt")


# --- checkpoints for benchmarks ---


@pytest.mark.parametrize("shape, format, kinds", [
    ("tiny", "Q4_K_M", "Q4_K Q6_K"), ("tiny", "Q4_0", "Q4_0 Q6_K"), ("tiny", "BF16", "BF16"), ("tiny-qwen3", "Q8_0", "Q8_0 F32"),
    ("tiny-gemma3", "Q4_K_M", "Q4_K Q6_K"), ("tiny-qwen3-moe", "Q4_K_M", "Q4_K Q6_K F32"), ("tiny-qwen3.5", "Q4_K_M", "Q4_K Q5_K Q6_K F32"),
    ("tiny-qwen3.5-moe", "Q8_0", "Q8_0 F32"), ("tiny-lfm2", "Q4_K_M", "Q4_K Q6_K F32"), ("tiny-deepseek2", "Q8_0", "Q8_0 F32")])
def test_random_checkpoints_load_and_their_weights_do_not_blow_up(tmp_path, shape, format, kinds):
    path = tmp_path / "random.gguf"
    subprocess.run([sys.executable, ROOT / "tests/bench/make_model.py", "--shape", shape, "--format", format, "--output", path],
                   check=True, timeout=patience(120), env=dict(os.environ, SLUICE_MODEL=model_path()))
    shown = subprocess.run([BIN / "sluice-worker", "inspect", path, "--text"], check=True, capture_output=True, text=True,
                           timeout=patience(20)).stdout
    for kind in kinds.split():
        assert f'format: "{kind}"' in shown or f"format: {kind}" in shown, shown
    report = json.loads(engine(tmp_path, path, "--prompt", "16", "--generate", "4", "--repetitions", 1, "--json").stdout)
    assert len(report["rows"]) == 2
