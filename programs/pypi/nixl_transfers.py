#!/usr/bin/env python3
"""NIXL over its UCX backend: two agents, WRITEs and READs between them, every byte compared.

    pip install --no-deps numpy nixl-cu12
    UCX_TLS=rc_v ferroce run -- python3 programs/pypi/nixl_transfers.py

The memory is that of the host. `--no-deps` leaves out PyTorch, which NIXL needs only for tensors.
"""

import sys
import time

import numpy

from two_processes import pattern, run

BLOCKS = [(64, 64), (64, 4096), (16, 1 << 20), (1, 64 << 20)]
LARGEST = max(count * size for count, size in BLOCKS)


def agent(name):
    from nixl_cu12 import nixl_agent, nixl_agent_config

    made = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    memory = numpy.zeros(LARGEST, numpy.uint8)
    made.register_memory([(memory.ctypes.data, LARGEST, 0, "")], "DRAM")
    return made, memory


def target(pipe):
    """Offers its memory, and answers each (size, seed) with whether the memory starts with that pattern."""
    made, memory = agent("target")
    pipe.send((made.get_agent_metadata(), memory.ctypes.data))
    while (question := pipe.recv()) is not None:
        pipe.send(numpy.array_equal(memory[: question[0]], pattern(*question)))


def initiator(pipe):
    made, memory = agent("initiator")
    metadata, address = pipe.recv()
    peer = made.add_remote_agent(metadata)
    for seed, (count, size) in enumerate(BLOCKS):
        total = count * size
        own, other = (
            made.get_xfer_descs([(start + block * size, size, 0) for block in range(count)], "DRAM")
            for start in (memory.ctypes.data, address)
        )
        memory[:total] = pattern(total, seed)
        start = time.monotonic()
        transfer(made, "WRITE", own, other, peer)
        pipe.send((total, seed))
        assert pipe.recv(), f"{count} blocks of {size} bytes arrived wrong at the target"
        memory[:total] = 0
        transfer(made, "READ", own, other, peer)
        spent = time.monotonic() - start
        assert numpy.array_equal(memory[:total], pattern(total, seed)), f"{count} blocks of {size} bytes were read wrong"
        print(f"{count} blocks of {size} bytes written and read back in {spent * 1e3:.1f} ms", flush=True)
    pipe.send(None)
    made.remove_remote_agent(peer)
    print("all transfers compared", flush=True)


def transfer(made, operation, own, other, peer):
    handle = made.initialize_xfer(operation, own, other, peer)
    state = made.transfer(handle)
    while state == "PROC":
        state = made.check_xfer_state(handle)
    assert state == "DONE", f"{operation}: {state}"
    made.release_xfer_handle(handle)


if __name__ == "__main__":
    sys.exit(run(target, initiator))
