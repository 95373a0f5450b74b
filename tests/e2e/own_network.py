# SPDX-License-Identifier: MIT
"""Runs a command in a network of its own, of which there is the loopback alone, and cuts it when told.

    unshare --user --map-root-user --net python3 own_network.py COMMAND ...

Lines of standard input: `down` cuts the network (packets are lost, no connection is closed), `up` mends it. Ends with the
command, and with its exit status.
"""
import fcntl
import socket
import struct
import subprocess
import sys
import threading

GET_FLAGS, SET_FLAGS, IS_UP = 0x8913, 0x8914, 1  # linux/sockios.h, net/if.h


def turn_loopback(up):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        flags = struct.unpack("16sh14x", fcntl.ioctl(some, GET_FLAGS, struct.pack("16sh14x", b"lo", 0)))[1]
        fcntl.ioctl(some, SET_FLAGS, struct.pack("16sh14x", b"lo", flags | IS_UP if up else flags & ~IS_UP))


def listen():
    for line in sys.stdin:
        turn_loopback({"up": True, "down": False}[line.strip()])


if __name__ == "__main__":
    turn_loopback(True)
    if sys.argv[1:]:
        process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
        threading.Thread(target=listen, daemon=True).start()
        sys.exit(process.wait())
