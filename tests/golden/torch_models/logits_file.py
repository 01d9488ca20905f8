"""The files of logits tiny/NAME.bin (README.md): some columns of each row, and the sum of all others.

    python -m torch_models.logits_file [NAME ...]

rewrites those files of tiny/ that have all columns (without a name: all files). The numbers of the listed columns stay.
This needs numpy alone."""

import pathlib
import struct
import sys

import numpy as np

from torch_models import rows

TOKENS = 283  # columns from here on may be padding that a model lacks: all are listed
FIRST, EACH, LAST = 16, 8, 16


def columns_of(n_all):
    """The first 16 columns, each eighth, and all from the last 16 tokens on."""
    last = min(n_all, TOKENS) - LAST
    return [c for c in range(n_all) if c < FIRST or c % EACH == 0 or c >= last]


class LogitsFile:
    """Writes a file: begin() for each sequence, then row() for each of its rows."""

    def __init__(self, path, n_sequences, n_all):
        self.n_all, self.columns = n_all, columns_of(n_all)
        self.f = open(path, "wb")
        self.f.write(b"SLTC" + struct.pack("<III", n_sequences, n_all, len(self.columns)) + np.array(self.columns, "<u2").tobytes())

    def begin(self, ids, n_rows):
        self.f.write(struct.pack("<II", len(ids), n_rows) + np.asarray(ids).astype("<u4").tobytes())

    def row(self, number, logits):
        self.f.write(struct.pack("<I", number) + pack(np.asarray(logits, np.float64), self.columns))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.f.close()


def pack(x, columns):
    """The scale is that of the whole row. Behind the scale stands the sum of the columns that are not listed."""
    packed = rows.pack(x[columns], scale=np.abs(x).max())
    rest = np.delete(x, columns).sum()
    return packed[:4] + np.array(rest, "<f4").tobytes() + packed[4:]


def read(path):
    """Number of columns of the model, listed columns, and for each sequence its ids and {row: (scale, rest, listed logits)}.
    A file SLTR lists all columns."""
    data = path.read_bytes()
    n_sequences, n_all = struct.unpack_from("<II", data, 4)
    at, columns, has_rest = 12, list(range(n_all)), data[:4] == b"SLTC"
    if has_rest:
        n = struct.unpack_from("<I", data, at)[0]
        columns = np.frombuffer(data, "<u2", n, at + 4).tolist()
        at += 4 + 2 * n
    sequences = []
    for _ in range(n_sequences):
        n_ids, n_rows = struct.unpack_from("<II", data, at)
        ids = np.frombuffer(data, "<u4", n_ids, at + 8).astype(np.int64)
        at += 8 + 4 * n_ids
        some = {}
        for _ in range(n_rows):
            number, scale = struct.unpack_from("<If", data, at)
            rest = struct.unpack_from("<f", data, at + 8)[0] if has_rest else 0.0
            # the scale stands in front of its numbers for rows.unpack
            packed = data[at + 4 : at + 8] + data[at + 8 + 4 * has_rest :][: rows.n_bytes(len(columns)) - 4]
            some[number] = scale, rest, rows.unpack(packed, 0, len(columns))
            at += 4 + 4 * has_rest + rows.n_bytes(len(columns))
        sequences.append((ids, some))
    if at != len(data):
        raise SystemExit(f"{path}: {len(data) - at} bytes too many")
    return n_all, columns, sequences


def rewrite(path):
    before = path.stat().st_size
    n_all, _, sequences = read(path)
    with LogitsFile(path, len(sequences), n_all) as f:
        for ids, rows in sequences:
            f.begin(ids, len(rows))
            for number, (_, _, logits) in rows.items():
                f.row(number, logits)
    _, columns, again = read(path)
    for (_, old), (_, new) in zip(sequences, again, strict=True):
        for number, (scale, _, logits) in old.items():
            if new[number][0] != scale or (new[number][2] != logits[columns]).any():
                raise SystemExit(f"{path}: row {number} changed")
    print(f"{path.name:28} {before:6} bytes, now {path.stat().st_size}")


def main():
    tiny = pathlib.Path(__file__).parents[1] / "tiny"
    paths = [tiny / f"{name}.bin" for name in sys.argv[1:]] or sorted(tiny.glob("*.bin"))
    for path in paths:
        if path.read_bytes()[:4] == b"SLTR":
            rewrite(path)


if __name__ == "__main__":
    main()
