"""The service manager's part for Type=notify units with WatchdogSec and Restart=always, as far as the tests need it.
Expects READY=1 and WATCHDOG=1. Ends a silent program with SIGABRT (and SIGCONT, then SIGKILL). Starts an ended
program again."""
import ctypes
import os
import select
import signal
import socket
import threading
import time


class ServiceManager(threading.Thread):
    def __init__(self, path, start, watchdog_s, abort_s=5.0, restart_s=0.1):
        """`start(env)` starts the program and returns its Popen."""
        super().__init__(daemon=True)
        self.start_program, self.watchdog_s, self.abort_s, self.restart_s = start, watchdog_s, abort_s, restart_s
        self.path = str(path)
        self.heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.heard.bind(self.path)
        self.heard.settimeout(0.02)
        self.ready_at, self.barked_at, self.n_alive, self.ended = [], [], 0, threading.Event()
        self.process = None
        self.start()

    def run(self):
        while not self.ended.is_set():
            self.process = self.start_program({"NOTIFY_SOCKET": self.path, "WATCHDOG_USEC": str(int(1e6 * self.watchdog_s))})
            self.watch(self.process)
            self.ended.wait(self.restart_s)

    def watch(self, process):
        alive_at, barked_at = None, None  # the watchdog's time counts from READY
        pidfd = os.pidfd_open(process.pid)  # poll() would take the stop of a traced thread for the end
        while not select.select([pidfd], [], [], 0)[0] and not self.ended.is_set():
            try:
                said = self.heard.recv(2000).decode()
            except socket.timeout:
                said = ""
            now = time.monotonic()
            if said.startswith("READY=1"):
                self.ready_at.append(now)
                alive_at = now
            elif "WATCHDOG=1" in said:
                self.n_alive += 1
                alive_at = now
            if barked_at is None and alive_at is not None and now - alive_at > self.watchdog_s:
                barked_at = now
                self.barked_at.append(now)
                process.send_signal(signal.SIGABRT)
                process.send_signal(signal.SIGCONT)
            if barked_at is not None and now - barked_at > self.abort_s:
                process.kill()
        os.close(pidfd)
        if not self.ended.is_set():
            process.wait()

    def stop(self):
        self.ended.set()
        self.join()
        self.heard.close()


PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000


def hold_thread(tid):
    """Stops one thread of a process for good, so the process hangs while its other threads run. This thread is the
    tracer."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, tid, None, None) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.waitpid(tid, WALL)  # reaps the stop, so that Popen does not take it for the end


def threads_of(pid):
    return sorted(int(t) for t in os.listdir(f"/proc/{pid}/task"))
