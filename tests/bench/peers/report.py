"""Rows of a comparison, as a table and as JSON. A ratio above 1 is always in Sluice's favour."""

import datetime
import json
import os
import platform
import statistics

LABELS = {
    "tokens_per_s": ("tokens/s", True), "ttft_p50_ms": ("TTFT p50, ms", False), "ttft_p99_ms": ("TTFT p99, ms", False),
    "itl_p50_ms": ("ITL p50, ms", False), "itl_p99_ms": ("ITL p99, ms", False), "ready_s": ("load to ready, s", False),
    "resident_bytes": ("resident, MiB", False), "unbacked_bytes": ("of it anonymous and shared, MiB", False),
}  # fmt: skip


def scale(metric):
    return 2.0**20 if metric.endswith("_bytes") else 1.0


def setting_text(setting):
    names = {"threads": "threads {}", "flash": "flash attention {}", "slots": "slots {}"}
    return ", ".join(names.get(k, k + " {}").format(v) for k, v in (setting or {}).items())


def own_precision(model):
    """Returns the precision of Sluice, for a model whose title ends with its format."""
    if model.split()[-1] in ("BF16", "F16", "F32"):
        return "the file's; sums in f32"
    return "the file's codes, scales as multiples of one unit a row; activations 8 bits, outliers 16; sums of integers"


class Report:
    def __init__(self, quick, sluice_version):
        with open("/proc/cpuinfo") as f:
            info = dict(tuple(w.strip() for w in line.split(":", 1)) for line in f.read().split("\n\n")[0].splitlines() if ":" in line)
        flags = info.get("flags", "").split()
        units = [u for u in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16") if u in flags]
        self.data = {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "quick": quick, "sluice": sluice_version,
            "machine": {"cpu": info.get("model name", platform.machine()), "units": units, "cpus": len(os.sched_getaffinity(0)),
                        "load_at_start": os.getloadavg()[0]},
            "numerics": {}, "peers": {}, "rows": [], "not_compared": [],
        }  # fmt: skip

    def peer(self, name, **about):
        self.data["peers"].setdefault(name, {}).update(about)

    def not_compared(self, peer, model, work, reason):
        self.data["not_compared"].append({"peer": peer, "model": model, "work": work, "reason": reason})

    def add(self, peer, model, work, setting, ours, theirs):
        """`ours` and `theirs` have a dictionary of metrics for each run. The runs of both alternate."""
        for metric, (_, more_is_better) in LABELS.items():
            a = [r[metric] for r in ours if metric in r]
            b = [r[metric] for r in theirs if metric in r]
            if not a or not b:
                continue
            x, y = statistics.median(a), statistics.median(b)
            ratio = (x / y if more_is_better else y / x) if x and y else 0.0
            self.data["rows"].append({
                "peer": peer, "model": model, "work": work, "metric": metric, "setting": setting, "runs": len(b), "load": os.getloadavg()[0],
                "sluice": {"median": x, "samples": a}, "theirs": {"median": y, "samples": b}, "ratio": ratio,
            })  # fmt: skip

    def save(self, path):
        if path:
            with open(path + ".part", "w") as f:
                json.dump(self.data, f, indent=1)
            os.replace(path + ".part", path)

    def text(self):
        d = self.data
        out = [f"{d['date']}, Sluice {d['sluice']}{', --quick' if d['quick'] else ''}. {d['machine']['cpu']}, {d['machine']['cpus']} CPUs "
               f"({', '.join(d['machine']['units'])}), load {d['machine']['load_at_start']:.1f} at the start.",
               "Medians of runs in turn; in brackets smallest and largest. A ratio above 1 is in Sluice's favour.", ""]  # fmt: skip
        out += ["| peer | version | model | precision |", "| --- | --- | --- | --- |"]
        for model, numerics in d["numerics"].items():
            out.append(f"| Sluice | {d['sluice']} | {model} | {own_precision(model)}; {numerics} |")
        for name, about in d["peers"].items():
            for model, precision in about.get("models", {}).items() or {"": about.get("reason", "")}.items():
                out.append(f"| {name} | {about.get('version', 'not compared')} | {model} | {precision} |")
        out += ["", "| peer | model | work | figure | Sluice | peer | ratio | runs | peer's setting |", "| --- " * 9 + "|"]
        for r in d["rows"]:
            label = LABELS[r["metric"]][0]
            cells = [self._cell(r[side], r["metric"]) for side in ("sluice", "theirs")]
            out.append(f"| {r['peer']} | {r['model']} | {r['work']} | {label} | {cells[0]} | {cells[1]} | {r['ratio']:.2f} | {r['runs']} | "
                       f"{setting_text(r['setting'])} |")  # fmt: skip
        if d["not_compared"]:
            out += ["", "Not compared:", ""]
            out += [f"- {n['peer']}{', ' + n['model'] if n['model'] else ''}{', ' + n['work'] if n['work'] else ''}: {n['reason']}"
                    for n in d["not_compared"]]  # fmt: skip
        return "\n".join(out) + "\n"

    def beside(self, title):
        """The ratios of tokens a second of each model, beside those of the models of that title in the same format."""
        rates = {(r["peer"], r["work"], *r["model"].split(" ", 1)): r["ratio"] for r in self.data["rows"] if r["metric"] == "tokens_per_s"}
        titles = [t for t in dict.fromkeys(key[2] for key in rates) if t != title]
        out = [f"Ratios beside those of {title}; a ratio below that of {title} is bold.", "",
               f"| peer | work | format | {' | '.join([title, *titles])} |", "| --- " * (4 + len(titles)) + "|"]  # fmt: skip
        for (peer, work, _, kind), base in (item for item in rates.items() if item[0][2] == title):
            found = [rates.get((peer, work, t, kind)) for t in titles]
            cells = ["" if r is None else f"**{r:.2f}**" if r < base else f"{r:.2f}" for r in found]
            out.append(f"| {peer} | {work} | {kind} | {base:.2f} | {' | '.join(cells)} |")
        return "\n".join(out) + "\n"

    @staticmethod
    def _cell(side, metric):
        number = lambda x: f"{x / scale(metric):,.0f}" if x / scale(metric) >= 100 else f"{x / scale(metric):.3g}"  # noqa: E731
        spread = f" ({number(min(side['samples']))}–{number(max(side['samples']))})" if len(side["samples"]) > 1 else ""
        return number(side["median"]) + spread
