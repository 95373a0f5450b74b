# SPDX-License-Identifier: MIT
"""Runs a command in a network of its own, and cuts it when asked to.

    unshare --user --map-root-user --net python3 own_network.py COMMAND ...
    unshare --user --map-root-user --net python3 own_network.py --machines N COMMAND ...
    unshare --user --map-root-user --net python3 own_network.py --silent-resolver COMMAND ...

The first form has the loopback alone; in the third a name server on it takes questions and answers none. The second runs N copies of the command as ranks on machines of their own, each with its
own address, joined by a bridge (needs `ip`).

Lines of standard input: `down` cuts the loopback (packets are lost, no connection is closed), `up` mends it; `down 2` pulls the cable
of the third machine, `up 2` plugs it in again. Ends with the command, and with its exit status; with several machines the last line of
the output is `exit codes` and a list in JSON, where -9 is a process killed by signal 9.
"""
import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading

GET_FLAGS, SET_FLAGS, IS_UP = 0x8913, 0x8914, 1  # linux/sockios.h, net/if.h
NEW_NETWORK, NEW_MOUNTS = 0x40000000, 0x00020000  # linux/sched.h
MEETING_PORT = "29500"


def turn_loopback(up):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        flags = struct.unpack("16sh14x", fcntl.ioctl(some, GET_FLAGS, struct.pack("16sh14x", b"lo", 0)))[1]
        fcntl.ioctl(some, SET_FLAGS, struct.pack("16sh14x", b"lo", flags | IS_UP if up else flags & ~IS_UP))


def silence_resolver():
    """@return the name server: a socket that nobody reads"""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_MOUNTS) != 0:
        sys.exit("no mount namespace")
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("nameserver 127.0.0.1\noptions timeout:30 attempts:1\n")
        file.flush()
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "--bind", file.name, "/etc/resolv.conf"], check=True)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    return server


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def listen():
    for line in sys.stdin:
        what, *machine = line.split()
        if machine:
            ip("link", "set", f"cable{machine[0]}", what)
        else:
            turn_loopback({"up": True, "down": False}[what])


class Machine:
    """A process that has left for a network of its own, and waits there for its cable."""
    def __init__(self, rank, size, command):
        left_reader, left = os.pipe()
        cable, self.cable_writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK) != 0:
                os._exit(126)
            os.write(left, b"1")
            os.read(cable, 1)
            turn_loopback(True)
            ip("address", "add", f"10.77.0.{rank + 1}/24", "dev", "eth0")
            ip("link", "set", "eth0", "up")
            os.execve(command[0], command, {
                **os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": MEETING_PORT})
        os.read(left_reader, 1)
        ip("link", "add", f"cable{rank}", "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        ip("link", "set", f"cable{rank}", "master", "bridge0", "up")

    def start(self):
        os.write(self.cable_writer, b"1")


def run_machines(count, command):
    ip("link", "add", "bridge0", "type", "bridge")
    ip("link", "set", "bridge0", "up")
    machines = [Machine(rank, count, command) for rank in range(count)]
    for machine in machines:
        machine.start()
    threading.Thread(target=listen, daemon=True).start()
    codes = [os.waitstatus_to_exitcode(os.waitpid(machine.pid, 0)[1]) for machine in machines]
    print("exit codes", json.dumps(codes), flush=True)


if __name__ == "__main__":
    turn_loopback(True)
    if sys.argv[1:2] == ["--machines"]:
        run_machines(int(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:]:
        command = sys.argv[1:]
        if command[0] == "--silent-resolver":
            server, command = silence_resolver(), command[1:]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        threading.Thread(target=listen, daemon=True).start()
        sys.exit(process.wait())
