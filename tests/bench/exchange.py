#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Adding the gradients of processes up: ours, c10d's Reducer (what DistributedDataParallel uses), and what scaling.py foretells.

    scripts/bench.sh exchange [--ranks 2] [--layers 12] [--width 768] [--samples 256] [--bucket-mebibytes 4] [--steps 20] [--rounds 5]
        [--network-gigabits 4]

A pass forward and back through linear layers, over Gloo on one machine, one thread a process. Each step takes every way in turn:
`alone` sends nothing, `after` sends when the backward pass is done, `during` while it runs, `reducer` is c10d's; `sum` and `latency` are
a single all-reduce, of all gradients and of one number. A round's figures are the medians over its steps; min, median and max over the
rounds are printed, and ratios of the ways of a round.

The prediction takes from a round the time alone, of the sum and of the latency, and runs scaling.py's simulation with them: each bucket
is sent when its layers are done and the one before it is through. It knows nothing of the processor's time that Gloo takes.

With --network-gigabits the ranks meet in a network namespace whose loopback carries so much a second, both directions together (needs
unshare, and ip and tc of iproute2): then sending is waiting more than computing, as over a real network.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys

import scaling
from shared import parser_of, spread


def enter_slow_network(arguments):
    if not arguments.inside:
        os.execvp("unshare", ["unshare", "--user", "--map-root-user", "--net", sys.executable, *sys.argv, "--inside"])
    megabits = round(arguments.network_gigabits * 1000)
    for command in ("ip link set lo up",
                    f"tc qdisc add dev lo root tbf rate {megabits}mbit burst 256kb latency 100ms"):
        subprocess.run(command.split(), check=True)


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


def one_round(arguments):
    """Medians over the steps by way, of rank 0."""
    port = str(free_port())
    command = [arguments.binary, *map(str, (arguments.layers, arguments.width, arguments.samples, arguments.bucket_mebibytes, arguments.steps))]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={
        **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(arguments.ranks), "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(arguments.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}) for rank in range(arguments.ranks)]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"a rank ended with {[process.returncode for process in processes]}")
    steps = [json.loads(line) for line in said[0].splitlines()]
    return {name: statistics.median(step[name] for step in steps) for name in steps[0]}


def predicted(arguments, times):
    """Seconds of a step that sends during the backward pass."""
    layers = [scaling.Layer(arguments.width * (arguments.width + 1), 1.0)] * arguments.layers
    rate = (times["sum"] - times["latency"]) / times["bytes"]
    computed, _, exposed = scaling.simulate(layers, seconds_a_flop=times["alone"] / (3 * arguments.layers),
                                            buckets=scaling.buckets_of(layers, arguments.bucket_mebibytes * 2**20, 4),
                                            seconds_of=lambda size: times["latency"] + rate * size)
    return computed + exposed


def main():
    parser = parser_of(__doc__, "bench_exchange", rounds=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--bucket-mebibytes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--network-gigabits", type=float)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.network_gigabits:
        enter_slow_network(arguments)
    rows = []
    for number in range(arguments.rounds):
        times = one_round(arguments)
        sent = times["after"] - times["alone"]
        rows.append({
            "alone, ms": times["alone"] * 1e3,
            "after, ms": times["after"] * 1e3,
            "during, ms": times["during"] * 1e3,
            "reducer, ms": times["reducer"] * 1e3,
            "sum of all, ms": times["sum"] * 1e3,
            "predicted, ms": predicted(arguments, times) * 1e3,
            "reducer / during": times["reducer"] / times["during"],
            "predicted / during": predicted(arguments, times) / times["during"],
            "hidden fraction of the sending time, %": 100 * (times["after"] - times["during"]) / sent if sent > 0 else 0.0})
        print(f"round {number + 1}: " + ", ".join(f"{name} {value:.2f}" for name, value in rows[-1].items()), flush=True)
    print(f"{times['bytes'] / 2**20:.1f} MiB of gradients in {times['buckets']:.0f} buckets, {times['overlapped']:.0f} sent during the pass")
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name}: {spread(values)}")
    print(f"figure exchange.ranks{arguments.ranks} = {statistics.median(row['reducer / during'] for row in rows):.2f}")


if __name__ == "__main__":
    main()
