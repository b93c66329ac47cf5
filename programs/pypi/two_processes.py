"""What the programs of this folder share: two processes with a pipe between them, and data that is easy to compare."""

import multiprocessing

import numpy


def pattern(size, seed):
    """Random bytes, the same in both processes."""
    return numpy.random.default_rng(seed).integers(0, 256, size, numpy.uint8)


def run(*sides):
    """Runs each function in a process with an end of the pipe. Returns the exit status: 0 if both returned."""
    # New processes rather than forks: each opens the device by itself.
    start = multiprocessing.get_context("spawn")
    ends = start.Pipe()
    processes = [start.Process(target=side, args=(end,)) for side, end in zip(sides, ends)]
    for process in processes:
        process.start()
    # Each process sees the end of the pipe when the other one is gone.
    for end in ends:
        end.close()
    for process in processes:
        process.join()
    return int(any(process.exitcode for process in processes))
