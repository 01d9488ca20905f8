"""Rewrites files of logits that have all columns: tiny/NAME.bin then lists some columns (README.md). The numbers of the listed
columns stay. Needs numpy alone.

    list_columns.py [NAME ...]     all files of tiny/ without a name"""

import pathlib
import sys

from torch_models import logits_file

TINY = pathlib.Path(__file__).parent / "tiny"


def rewrite(path):
    before = path.stat().st_size
    n_all, _, sequences = logits_file.read(path)
    with logits_file.LogitsFile(path, len(sequences), n_all) as f:
        for ids, rows in sequences:
            f.begin(ids, len(rows))
            for number, (_, _, logits) in rows.items():
                f.row(number, logits)
    _, columns, again = logits_file.read(path)
    for (_, old), (_, new) in zip(sequences, again, strict=True):
        for number, (scale, _, logits) in old.items():
            if new[number][0] != scale or (new[number][2] != logits[columns]).any():
                raise SystemExit(f"{path}: row {number} changed")
    print(f"{path.name:28} {before:6} bytes, now {path.stat().st_size}")


def main():
    paths = [TINY / f"{name}.bin" for name in sys.argv[1:]] or sorted(TINY.glob("*.bin"))
    for path in paths:
        if path.read_bytes()[:4] == b"SLTR":
            rewrite(path)


if __name__ == "__main__":
    main()
