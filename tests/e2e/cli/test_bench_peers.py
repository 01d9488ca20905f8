"""tests/bench/peers.sh without peers: the direction of the ratios, the note about omitted peers, and the refusal of
wrong arguments."""

import json
import subprocess
import sys

from conftest import ROOT

PEERS = ROOT / "tests" / "bench" / "peers"
sys.path.insert(0, str(PEERS))
import report as peers_report  # noqa: E402


def made():
    rep = peers_report.Report(True, "1.2.3")
    rep.peer("fast", version="9", models={"sample Q4_1": "as the file"})
    rep.peer("gone", reason="does not install")
    rep.not_compared("gone", "", "", "does not install")
    rep.add("fast", "sample Q4_1", "decode", {"threads": 2}, [{"tokens_per_s": v} for v in (300, 100, 200)],
            [{"tokens_per_s": v} for v in (50, 40, 400)])  # fmt: skip
    rep.add("fast", "sample Q4_1", "start", None, [{"ready_s": 0.5, "resident_bytes": 1 << 30}], [{"ready_s": 2.0}])
    return rep


def test_a_ratio_above_one_is_in_our_favour_of_medians():
    rows = made().data["rows"]
    assert [(r["metric"], r["ratio"]) for r in rows] == [("tokens_per_s", 4.0), ("ready_s", 4.0)]  # a metric that a side lacks has no row
    assert rows[0]["sluice"]["samples"] == [300, 100, 200] and rows[0]["theirs"]["median"] == 50


def test_what_is_not_compared_is_printed(tmp_path):
    rep = made()
    text = rep.text()
    assert "- gone: does not install" in text and "| gone | not compared |  | does not install |" in text
    assert "| fast | sample Q4_1 | decode | tokens/s | 200 (100–300) | 50 (40–400) | 4.00 | 3 | threads 2 |" in text
    rep.save(str(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text())["not_compared"][0]["peer"] == "gone"


def test_ratios_below_those_of_the_base_are_bold():
    rep = peers_report.Report(True, "1.2.3")
    for model, ours in (("1.1b Q8_0", 200), ("qwen Q8_0", 150), ("gemma Q8_0", 300), ("qwen Q4_K_M", 100)):
        rep.add("fast", model, "decode", None, [{"tokens_per_s": ours}], [{"tokens_per_s": 100}])
    table = rep.beside("1.1b")
    assert "| peer | work | format | 1.1b | qwen | gemma |" in table
    assert "| fast | decode | Q8_0 | 2.00 | **1.50** | 3.00 |" in table and "Q4_K_M" not in table


def test_wrong_words_are_named():
    result = subprocess.run([sys.executable, PEERS / "main.py", "--peers", "llama.cpp,nobody"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and all(word in result.stderr for word in ("--peers", "'nobody'", "llama.cpp", "openvino-genai"))
