# SPDX-License-Identifier: MIT
"""Checks of gpu_check.py with several processes: over NCCL where there are two GPUs, over Gloo on the one device else."""
import os
import signal
import time

from gpu_runs import BATCH, harness, need
from rank_start import Start

TWO_PROCESSES_FIRST, TWO_PROCESSES_ALL = 1e-4, 1e-2  # relative: sums in another order, over many steps of Adam
HANG_SECONDS = 8
# From the fault to the last process: half the hang timeout, and 20 s of the launcher.
LIMIT = HANG_SECONDS + 20 + 15
ENDLESS = 10**7  # samples


def carrier(runs):
    return "nccl" if runs.gpus >= 2 else "gloo"


def one_rank(runs):
    """A single process on the way of several."""
    group = "nccl" if runs.on_gpu else "gloo"
    runs.program("--config", runs.decoder("one_rank"), env={**harness.rank_variables(0, 1, harness.free_port()), "DALLE2_GROUP": group})
    return {"carrier": group, **runs.same_state("plain", "one_rank")}


def two_decoders(runs, name, **train):
    """Two processes, each with as many steps as the accumulating one has updates."""
    config = runs.decoder(name, data={"lanes": 2}, steps=2 * runs.steps, **train)
    runs.program("--config", config, "--nproc-per-node", 2, env={"DALLE2_GROUP": carrier(runs)})


def two_ranks(runs):
    """Beside one process that takes the batches of both."""
    runs.program("--config", runs.decoder("both", data={"lanes": 2}, grad_accum_every=2))
    two_decoders(runs, "two")
    return {"carrier": carrier(runs), **runs.near("both", "two", TWO_PROCESSES_FIRST, TWO_PROCESSES_ALL), **runs.figures("two", 2 * BATCH)}


def two_ranks_sharded(runs):
    """Moments and averages spread over the processes (ZeRO stage 1), beside the same without."""
    two_decoders(runs, "two_sharded", shard_optimizer=True)
    return {"carrier": carrier(runs), **runs.near("two", "two_sharded", TWO_PROCESSES_FIRST, TWO_PROCESSES_ALL),
            **runs.figures("two_sharded", 2 * BATCH)}


def two_ranks_of_a_vae(runs):
    """Codes that two processes learn together, and no rank's weights drift: each save compares them."""
    runs.program("--config", runs.vae("two_vae"), "--nproc-per-node", 2, env={"DALLE2_GROUP": carrier(runs)})
    return {"carrier": carrier(runs), "last_losses": runs.last_losses("two_vae")}


def two_ranks_of_a_clip(runs):
    """Whose loss is one of the samples of both, beside one process that takes the batches of both."""
    runs.program("--config", runs.clip("both_clip", data={"lanes": 2}, grad_accum_every=2))
    config = runs.clip("two_clip", 2 * runs.steps, data={"lanes": 2})
    runs.program("--config", config, "--nproc-per-node", 2, env={"DALLE2_GROUP": carrier(runs)})
    return {"carrier": carrier(runs), **runs.near("both_clip", "two_clip", TWO_PROCESSES_FIRST, TWO_PROCESSES_ALL)}


def disturbed(runs, name, act, inside=(), env=None):
    """@return what the run said after the fault, the seconds that it took to end, and its exit code"""
    config = runs.decoder(name, hang_timeout_seconds=HANG_SECONDS, epoch_samples=ENDLESS, save_every_n_samples=10 * BATCH)
    start = Start(config, runs.folder, 2, inside=inside, env={"DALLE2_GROUP": carrier(runs), **(env or {})})
    try:
        assert start.wait_for("Saving snapshot", limit=120), f"it ended by itself\n{start.output()}"
        act(start)
        seconds = start.wait(LIMIT)
        assert seconds is not None, f"not ended after {LIMIT} s\n{start.output()}"
        assert start.codes() == [6], f"exit codes {start.codes()}\n{start.output()}"
        runs.program("fsck", name)  # what it had saved is whole
        return start.said(), {"carrier": carrier(runs), "seconds_to_the_end": round(seconds, 1)}
    finally:
        start.clean_up()


def send(number):
    def act(start):
        time.sleep(1)
        os.kill(harness.ranks_of(start.process)[1], number)
    return act


def hang_report(runs):
    """Of a process that is stopped (SIGSTOP)."""
    said, figures = disturbed(runs, "stuck", send(signal.SIGSTOP))
    assert "rank 1 has not been heard of" in said, said
    return figures


def killed(runs):
    said, figures = disturbed(runs, "killed", send(signal.SIGKILL))
    assert "rank 1 was killed by signal 9" in said and "rank 1 has not been heard of" in said, said
    return figures


def cut(runs):
    """A network that is cut. NCCL is made to use it; inside one machine it would not."""
    need(harness.HAS_OWN_NETWORK, "no right to make a network namespace (unshare --net)")

    def act(start):
        time.sleep(1)
        harness.tell_network(start.process, "down")

    said, figures = disturbed(runs, "cut", act, inside=harness.OWN_NETWORK, env={
        "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"})
    assert "or the network is down" in said, said
    return figures

