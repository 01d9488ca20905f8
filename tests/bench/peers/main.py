"""The comparison itself; tests/bench/peers.sh starts it."""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common  # noqa: E402
import in_venv  # noqa: E402
import llama_cpp  # noqa: E402
import ours  # noqa: E402
import report  # noqa: E402
from common import Unavailable  # noqa: E402

EXAMPLES = """examples:
  tests/bench/peers.sh --quick                      everything, shortened: 15 minutes once all is built
  tests/bench/peers.sh --json peers.json            the whole comparison, ≤ 60 minutes
  tests/bench/peers.sh --peers llama.cpp --models sample --formats Q4_1,Q8_0
  tests/bench/peers.sh --models                     llama.cpp alone, on other families; 90 minutes
  tests/bench/peers.sh --install                    only gets and builds the peers

A model of a title in a format: `sample` in Q4_1 is the sample model. In another format it is a random model of the sample model's shape. Other
titles are random models too (tests/bench/make_model.py). `--models` without titles takes 1.1b and the shapes of other families in Q8_0 and
Q4_K_M, and compares the ratios of each shape with those of 1.1b. Peers are kept in ~/.cache/sluice/peers, where a later run finds them. SLUICE_BIN: programs to use in place of
the release preset's, which is built otherwise. The machine should be otherwise idle; the load is printed with the figures."""


FAMILIES = ["1.1b", "qwen3-0.6b", "gemma3-270m", "qwen3-moe", "qwen3.5-0.8b", "qwen3.5-moe", "lfm2-1.2b", "deepseek2-lite-8"]
TITLES = ["sample", *FAMILIES]
PIECES = [work.name for work in common.offline_works(False)]


def say(text):
    print(f"peers: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def arguments():
    names = ["llama.cpp"] + [p.name for p in in_venv.peers()]
    p = argparse.ArgumentParser(prog="tests/bench/peers.sh", description="Sluice beside other engines on the same model, run in turn.",
                                epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    words = lambda text: text.split(",")  # noqa: E731
    p.add_argument("--peers", type=words, metavar="NAMES", help=f"by commas (default: all, {', '.join(names)})")
    p.add_argument("--models", type=words, nargs="?", const=[], metavar="TITLES",
                   help=f"{', '.join(TITLES)} (default: sample,1.1b; without titles: all but sample)")  # fmt: skip
    p.add_argument("--formats", type=words, metavar="NAMES", help="GGUF formats (default: Q4_1)")
    p.add_argument("--works", type=words, metavar="NAMES", help="offline, start, served (default: all)")
    p.add_argument("--pieces", type=words, metavar="NAMES", help=f"of the offline work: {', '.join(PIECES)} (default: all)")
    p.add_argument("--clients", type=words, default=["1", "8", "32"], metavar="NUMBERS", help="of the loads on a server (default: 1,8,32)")
    p.add_argument("--runs", type=int, help="of each, in turn (default: 5; 3 with --quick)")
    p.add_argument("--quick", action="store_true", help="3 runs, shorter generations, no load on a server with the 1.1b model")
    p.add_argument("--install", action="store_true", help="get and build the peers, and end")
    p.add_argument("--json", metavar="FILE", help="results as JSON too, written after each piece of work")
    args = p.parse_args()
    whole = {"peers": names, "models": ["sample", "1.1b"], "formats": ["Q4_1"], "works": ["offline", "start", "served"], "pieces": PIECES}
    families = {"peers": ["llama.cpp"], "models": FAMILIES, "formats": ["Q8_0", "Q4_K_M"], "works": ["offline"],
                "pieces": ["prefill-512", "decode-1", "decode-8"]}  # fmt: skip
    args.families = args.models == []
    for key, value in (families if args.families else whole).items():
        setattr(args, key, getattr(args, key) or value)
    for given, known, what in ((args.peers, names, "peers"), (args.models, TITLES, "models"), (args.works, whole["works"], "works"),
                               (args.pieces, PIECES, "pieces"), (args.clients, ["1", "8", "32"], "clients")):  # fmt: skip
        for word in given:
            if word not in known:
                p.error(f"--{what}: {word!r} is none of {', '.join(known)}")
    if args.runs is not None and args.runs < 1:
        p.error("--runs: at least 1")
    args.runs = args.runs or (3 if args.quick else 5)
    return args


def bring_model(title, name):
    if title == "sample" and name == "Q4_1":
        line = [common.ROOT / "etc/fetch_model.sh"]
    else:
        line = [sys.executable, common.HERE.parent / "make_model.py", "--shape", {"sample": "135m"}.get(title, title), "--format", name]
    path = common.run(line, 900).splitlines()[-1]
    with open(path, "rb") as f:  # into the page cache, for every program alike
        while f.read(1 << 24):
            pass
    return common.Model(title, name, path)


def install(peers, rep):
    there = []
    for peer in peers:
        say(f"{peer.name}: get, build or find")
        try:
            rep.peer(peer.name, version=peer.install(common.CACHE / "peers"))
            there.append(peer)
        except (Unavailable, subprocess.SubprocessError, OSError) as e:
            rep.peer(peer.name, reason=str(e))
            rep.not_compared(peer.name, "", "", str(e))
            say(f"{peer.name}: not compared: {e}")
    return there


class Comparison:
    """Results of one peer on one model."""

    def __init__(self, sluice, peer, model, args, rep):
        self.sluice, self.peer, self.model, self.args, self.rep = sluice, peer, model, args, rep
        self.title = f"{model.title} {model.format}"
        self.cpus = len(os.sched_getaffinity(0))
        self.best = {} # work -> its best setting

    def choose(self, settings, measure, what):
        """Tries each setting once. Returns the setting with the most tokens per second."""
        tried, reasons = [], []
        for setting in settings:
            try:
                tried.append((measure(setting), setting))
            except (Unavailable, RuntimeError, OSError, KeyError, ValueError) as e:
                reasons.append(f"{report.setting_text(setting)}: {e}")
        if not tried:
            raise Unavailable("; ".join(reasons))
        rate, setting = max(tried, key=lambda t: t[0])
        say(f"{self.peer.name} {self.title} {what}: best of {len(tried)} settings: {report.setting_text(setting)} ({rate:.4g} tokens/s)")
        return setting

    def in_turn(self, what, setting, ours, theirs):
        a, b = [], []
        for _ in range(self.args.runs):
            a.append(ours())
            b.append(theirs())
        self.rep.add(self.peer.name, self.title, what, setting, a, b)
        self.rep.save(self.args.json)

    def attempt(self, what, do):
        try:
            do()
        except (Unavailable, RuntimeError, OSError, KeyError, ValueError) as e:
            self.rep.not_compared(self.peer.name, self.title, what, str(e))
            say(f"{self.peer.name} {self.title} {what}: not compared: {e}")

    def offline(self, work):
        setting = self.choose(self.peer.settings(self.cpus), lambda s: self.peer.measure(work, s), work.says())
        self.best[work.name] = setting
        self.in_turn(work.says(), setting, lambda: {"tokens_per_s": self.sluice.measure(work)},
                     lambda: {"tokens_per_s": self.peer.measure(work, setting)})  # fmt: skip

    def start(self):
        setting = self.best.get("decode-1") or self.peer.settings(self.cpus)[-1]
        self.in_turn("start, page cache warm", setting, self.sluice.start, lambda: self.peer.start(setting))

    def served(self, load):
        # Threads and flash attention: the best setting at the same batch offline, or every combination where that was
        # not run.
        known = self.best.get(f"decode-{load.clients}")
        candidates = self.peer.served_settings(load, [known] if known else self.peer.settings(self.cpus))
        short = common.Load(load.clients, load.clients, load.prompt, 32)
        rate = lambda s: self.peer.serve(short, s)["tokens_per_s"]  # noqa: E731
        setting = self.choose(candidates, rate, load.says()) if len(candidates) > 1 else candidates[0]
        self.in_turn(load.says(), setting, lambda: self.sluice.serve(load), lambda: self.peer.serve(load, setting))

    def run(self):
        try:
            say(f"{self.peer.name}: takes {self.title}")
            precision = self.peer.prepare(self.model)
        except (Unavailable, ValueError, OSError) as e:
            self.rep.not_compared(self.peer.name, self.title, "", f"does not take the model: {e}")
            say(f"{self.peer.name} {self.title}: not compared: {e}")
            return
        self.rep.data["peers"][self.peer.name].setdefault("models", {})[self.title] = precision
        if "offline" in self.args.works:
            for work in common.offline_works(self.args.quick):
                if work.name not in self.args.pieces:
                    continue
                self.attempt(work.says(), lambda work=work: self.offline(work))
        if "start" in self.args.works:
            self.attempt("start", self.start)
        if "served" not in self.args.works:
            return
        if not self.peer.serves:
            self.rep.not_compared(self.peer.name, self.title, "served", self.peer.why_not_served)
        elif self.args.quick and self.model.title != "sample":
            self.rep.not_compared(self.peer.name, self.title, "served", "left out by --quick")
        else:
            for load in common.served_loads(self.args.quick):
                if str(load.clients) not in self.args.clients:
                    continue
                self.attempt(load.says(), lambda load=load: self.served(load))


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that programs under way are ended too
    started = time.monotonic()
    peers = [p for p in [llama_cpp.LlamaCpp(), *in_venv.peers()] if p.name in args.peers]
    sluice = ours.Sluice()
    try:
        version = "not built" if args.install else sluice.build()
        rep = report.Report(args.quick, version)
        peers = install(peers, rep)
        models = [] if args.install else [bring_model(title, name) for title in args.models for name in args.formats]
    except Unavailable as e:
        sys.exit(f"peers: {e}")
    installed = time.monotonic()
    for model in models:
        sluice.prepare(model)
        for peer in peers:
            Comparison(sluice, peer, model, args, rep).run()
            if sluice.numerics:
                rep.data["numerics"][f"{model.title} {model.format}"] = sluice.numerics
            rep.save(args.json)
    rep.data["seconds"] = {"install": installed - started, "compare": time.monotonic() - installed}
    rep.data["machine"]["load_at_end"] = os.getloadavg()[0]
    rep.save(args.json)
    print(rep.text())
    if args.families:
        print(rep.beside(FAMILIES[0]))
    say(f"{installed - started:.0f} s to get and build, {time.monotonic() - installed:.0f} s to compare")


main()
