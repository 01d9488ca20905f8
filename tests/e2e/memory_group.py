"""A memory cgroup of the test's own; needs root."""
import os
import pathlib

import pytest

from conftest import until


class MemoryGroup:
    """A memory cgroup below this process's own (v1) or the root's (v2). Skips the test where the machine allows none."""

    def __init__(self):
        lines = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().split()]
        v1 = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
        self.is_v1 = bool(v1)
        self.home = pathlib.Path("/sys/fs/cgroup/memory" + v1[0] if v1 else "/sys/fs/cgroup" + lines[0][2])
        parent = self.home if v1 else pathlib.Path("/sys/fs/cgroup")
        self.path = parent / f"sluice-test-{os.getpid()}"
        try:
            self.path.mkdir()
        except OSError as e:
            pytest.skip(f"no memory cgroup can be made here: {e}")
        if not (self.path / ("memory.limit_in_bytes" if v1 else "memory.max")).exists():
            self.path.rmdir()
            pytest.skip("the memory controller is not on here")

    def __enter__(self):
        """Processes that this process starts from now on belong to the group; this process itself only until leave()."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))
        return self

    def leave(self):
        (self.home / "cgroup.procs").write_text(str(os.getpid()))

    def used(self):
        return int((self.path / ("memory.usage_in_bytes" if self.is_v1 else "memory.current")).read_text())

    def limit(self, n_bytes):
        """Sets the limit. None removes the limit."""
        if self.is_v1:
            (self.path / "memory.limit_in_bytes").write_text(str(n_bytes or -1))
        else:
            (self.path / "memory.max").write_text(str(n_bytes or "max"))

    def kills(self):
        text = (self.path / ("memory.oom_control" if self.is_v1 else "memory.events")).read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def __exit__(self, failure, *_):
        self.limit(None)
        self.leave()
        for pid in (self.path / "cgroup.procs").read_text().split() if failure else ():
            (self.home / "cgroup.procs").write_text(pid)  # the test's fixture ends them later
        until(lambda: not (self.path / "cgroup.procs").read_text(), 20, "processes are left in it")
        self.path.rmdir()
