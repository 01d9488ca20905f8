"""A cable that a test can cut: two network namespaces with a pair of veth devices between them. A program serves in one
namespace, and sockets of the other one dial it. After cut() every packet is dropped, in both directions, and neither
side gets a FIN, a reset or an ICMP message. Needs root, or user namespaces."""
import os
import socket
import subprocess
import sys

DIALER = ("import os, socket, sys\n"
          "out = socket.socket(fileno=int(sys.argv[1]))\n"
          "print('ready', flush=True)\n"
          "for line in sys.stdin:\n"
          "    s = socket.create_connection((sys.argv[2], int(line)), 10)\n"
          "    socket.send_fds(out, [b'x'], [s.fileno()])\n"
          "    s.close()\n")


def user_options():
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


def is_possible():
    """False where the kernel or a container refuses network namespaces or has no veth devices."""
    pair = "ip link add near type veth peer name far"
    return subprocess.run(["unshare", *user_options(), "--net", "sh", "-c", pair], capture_output=True).returncode == 0


class Cable:
    ADDRESS = "10.77.0.1"  # the server's, in the namespaces alone

    def __init__(self):
        user = user_options()
        enter = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        self.near = self.spawn("unshare", *user, "--net", "sh")
        self.prefix = ["nsenter", "--target", str(self.near.pid), *enter, "--net"]
        self.say(self.near, "true")  # the namespace is there
        self.far = self.spawn(*self.prefix, "unshare", "--net", "sh")
        self.say(self.far, "true")
        self.say(self.near, f"ip link set lo up && ip link add near type veth peer name far netns {self.far.pid} && "
                            f"ip address add {self.ADDRESS}/24 dev near && ip link set near up")
        self.say(self.far, "ip address add 10.77.0.2/24 dev far && ip link set far up")
        self.sockets, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.set_inheritable(theirs.fileno(), True)
        self.dialer = subprocess.Popen([*self.prefix[:2], str(self.far.pid), *self.prefix[3:], sys.executable, "-c", DIALER,
                                        str(theirs.fileno()), self.ADDRESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       pass_fds=[theirs.fileno()])
        theirs.close()
        assert self.dialer.stdout.readline() == "ready\n"

    @staticmethod
    def spawn(*command):
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @staticmethod
    def say(shell, command):
        """Runs a command in a namespace's shell."""
        shell.stdin.write(f"{command} && echo done || echo failed\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == "done\n", command

    def dial(self, port, seconds):
        """Returns a connection from the far end."""
        self.dialer.stdin.write(f"{port}\n")
        self.dialer.stdin.flush()
        self.sockets.settimeout(seconds)
        _, (fd,), _, _ = socket.recv_fds(self.sockets, 1, 1)
        s = socket.socket(fileno=fd)
        s.settimeout(seconds)
        return s

    def cut(self):
        """Each end sends to a hardware address that the other end does not have."""
        self.say(self.near, "ip neighbour replace 10.77.0.2 lladdr 02:00:00:00:00:99 dev near nud permanent")
        self.say(self.far, f"ip neighbour replace {self.ADDRESS} lladdr 02:00:00:00:00:99 dev far nud permanent")

    def close(self):
        for process in (self.dialer, self.far, self.near):
            process.stdin.close()
            process.stdout.close()
            process.wait(10)
        self.sockets.close()
