#!/usr/bin/env python3
"""The settings of all programs, as their --help lists them. setting_names.py BIN prints rows for
base/settings/setting_names.c. That file leaves out the rows of base/settings/load_settings.c."""
import pathlib
import re
import subprocess
import sys

PROGRAMS = ["server", "manager", "worker", "cli"]  # named as the sections of a file
NO_SETTINGS = {"help", "man", "origin", "config"}  # options that are no settings


def rows(*argv):
    text = subprocess.run([*argv, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^ +(?:-\w, )? *--([a-z0-9-]+)", text.split("\noptions:\n")[1], re.M)) - NO_SETTINGS


def words(pattern, *argv):
    """Returns the names that a program lists: its commands, its modes."""
    return re.findall(pattern, subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split("\n\nexamples:")[0], re.M)


def settings(folder):
    """Returns name of each setting → the programs that have the setting."""
    bin = pathlib.Path(folder)
    commands = words(r"^  ([a-z]+(?: [a-z]+)?)  +\S", bin / "sluice", "help")
    modes = [m for m in words(r"^  ([a-z]+)  +\S", bin / "sluice-worker", "--help") if m != "quantize"]
    found = {"server": rows(bin / "sluice-server") - {"version"}, "manager": rows(bin / "sluice-manager") - {"version"},
             "worker": set().union(*(rows(bin / "sluice-worker", m) for m in modes)),
             "cli": set().union(*(rows(bin / "sluice", *c.split()) for c in commands))}
    return {name: [p for p in PROGRAMS if name in found[p]] for name in sorted(set().union(*found.values()))}


if __name__ == "__main__":
    for name, programs in settings(sys.argv[1]).items():
        print(f'    {{"{name}", {" | ".join(p.upper() for p in programs)}}},')
