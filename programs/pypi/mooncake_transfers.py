#!/usr/bin/env python3
"""Mooncake's transfer engine over RDMA: a target and an initiator, every byte compared.

    pip install numpy mooncake-transfer-engine-non-cuda
    ferroce run -- python3 programs/pypi/mooncake_transfers.py

The initiator writes into the target's memory and reads it back, in one transfer of 64 MiB and in many small ones. The
target compares what arrived in its memory. MC_WORKERS_PER_CTX is the number of Mooncake's threads, two by default.
"""

import sys
import time

import numpy

from two_processes import pattern, run

LARGE = 64 << 20
SMALL = [8, 64, 1000, 4096, 65536]
ROUNDS = 20
DEVICE = "ferroce0"


def engine():
    from mooncake.engine import TransferEngine

    made = TransferEngine()
    assert made.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", DEVICE) == 0, "initialize failed"
    return made


def registered(made, size):
    memory = numpy.zeros(size, numpy.uint8)
    assert made.register_memory(memory.ctypes.data, size) == 0, "register_memory failed"
    return memory


def target(pipe):
    """Offers its memory, and answers each (size, seed) with whether the memory starts with that pattern."""
    made = engine()
    memory = registered(made, LARGE)
    pipe.send((f"127.0.0.1:{made.get_rpc_port()}", memory.ctypes.data))
    while (question := pipe.recv()) is not None:
        pipe.send(numpy.array_equal(memory[: question[0]], pattern(*question)))
    made.unregister_memory(memory.ctypes.data)


def initiator(pipe):
    made = engine()
    source, sink = registered(made, LARGE), registered(made, LARGE)
    peer, address = pipe.recv()
    for size, rounds in [(size, ROUNDS) for size in SMALL] + [(LARGE, 1)]:
        spent = 0.0
        for seed in range(rounds):
            source[:size] = pattern(size, seed)
            sink[:size] = 0
            start = time.monotonic()
            for transfer, memory in ((made.transfer_sync_write, source), (made.transfer_sync_read, sink)):
                assert transfer(peer, memory.ctypes.data, address, size) == 0, f"a transfer of {size} bytes failed"
            spent += time.monotonic() - start
            pipe.send((size, seed))
            assert pipe.recv(), f"{size} bytes arrived wrong at the target"
            assert numpy.array_equal(source[:size], sink[:size]), f"{size} bytes were read back wrong"
        print(f"{size} bytes written and read back {rounds} times, {spent / rounds * 1e6:.0f} us each", flush=True)
    pipe.send(None)
    for memory in (source, sink):
        made.unregister_memory(memory.ctypes.data)
    print("all transfers compared", flush=True)


if __name__ == "__main__":
    sys.exit(run(target, initiator))
