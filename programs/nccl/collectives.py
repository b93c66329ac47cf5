#!/usr/bin/env python3
"""NCCL's collectives through PyTorch over ferroce, two processes on one GPU, with every result checked on the GPU.

    ferroce run -- python3 programs/nccl/collectives.py            over ferroce
    NCCL_NET=Socket python3 programs/nccl/collectives.py           over TCP, to compare

Prints a line per operation and size, and at the end which network NCCL used. The exit status is 0 if all results were right. Needs PyTorch with
CUDA and one GPU. Two processes share the GPU in turns, so the times compare networks only roughly.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
RANKS = 2


def fill(count, rank, torch):
    """Small integers, so that sums of floats are exact."""
    return (torch.arange(count, device="cuda") % 1000 + rank).float()


def operations(rank, count, torch, dist):
    """(name, the operation, whether its result is right)"""
    own, other = fill(count, rank, torch), fill(count, 1 - rank, torch)
    total = own.clone()
    parts = [torch.zeros_like(own) for _ in range(RANKS)]
    received = torch.zeros_like(own)

    def exchange():
        if rank == 0:
            dist.send(own, 1)
            dist.recv(received, 1)
        else:
            dist.recv(received, 0)
            dist.send(own, 0)

    def reduce():
        total.copy_(own)
        dist.all_reduce(total)

    yield "all_reduce", reduce, lambda: torch.equal(total, own + other)
    yield "all_gather", lambda: dist.all_gather(parts, own), lambda: torch.equal(parts[1 - rank], other)
    yield "send/recv", exchange, lambda: torch.equal(received, other)


def work(rank, sizes):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=rank, world_size=RANKS)
    wrong = 0
    for size in sizes:
        for name, run, is_right in operations(rank, max(size // 4, 1), torch, dist):
            run()
            torch.cuda.synchronize()
            start, rounds = time.monotonic(), 5
            for _ in range(rounds):
                run()
            torch.cuda.synchronize()
            micros = (time.monotonic() - start) / rounds * 1e6
            right = is_right()
            wrong += not right
            if rank == 0:
                print(json.dumps({"operation": name, "bytes": size, "us": round(micros), "right": right}), flush=True)
            elif not right:
                print(f"rank 1: {name} of {size} bytes is wrong", file=sys.stderr)
    dist.destroy_process_group()
    sys.exit(1 if wrong else 0)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def launch(sizes):
    with tempfile.TemporaryDirectory() as logs:
        return run_ranks(sizes, logs)


def run_ranks(sizes, logs):
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": f"{logs}/%p.log",
    }
    children = []
    for rank in range(RANKS):
        # Processes of one host with one GPU are refused; as two hosts they use the network.
        env = {**os.environ, **common, "NCCL_HOSTID": f"host{rank}"}
        children.append(subprocess.Popen([sys.executable, __file__, "--rank", str(rank), *map(str, sizes)], env=env))
    codes = [child.wait() for child in children]
    for rank, child in enumerate(children):
        with open(f"{logs}/{child.pid}.log") as log:
            lines = [line.strip() for line in log if "NET/" in line and ("Using" in line or " via " in line)]
        print(f"rank {rank}: {lines[0] if lines else 'NCCL chose no network'}")
        print(f"rank {rank}: {lines[-1] if lines else ''}")
    return 0 if codes == [0] * RANKS else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bytes", type=int, nargs="*", default=SIZES, help="sizes (default: 8 B to 64 MiB)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.exit(launch(args.bytes) if args.rank is None else work(args.rank, args.bytes))
