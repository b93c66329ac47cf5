#!/usr/bin/env python3
"""InfiniStore over RDMA: a server, and a client that stores values under keys and fetches them, every byte compared.

    pip install --no-deps numpy uvloop infinistore
    ferroce run -- python3 programs/pypi/infinistore_keys.py

The server is InfiniStore's, without the management over HTTP that `python3 -m infinistore.server` adds. `--no-deps` leaves
out PyTorch, which only its tests import. The server allocates 1 GB.
"""

import asyncio
import socket
import sys
import time

import numpy

from two_processes import pattern, run

DEVICE = {"dev_name": "ferroce0", "link_type": "Ethernet"}
BLOCKS = [(64, 16 << 10), (32, 256 << 10), (8, 4 << 20)]
LARGEST = max(count * size for count, size in BLOCKS)


def server(pipe):
    import infinistore
    import uvloop

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    loop = uvloop.new_event_loop()
    config = infinistore.ServerConfig(service_port=port, prealloc_size=1, minimal_allocate_size=16, **DEVICE)
    infinistore.register_server(loop, config)
    pipe.send(port)
    # Serves until the client is done.
    loop.add_reader(pipe.fileno(), loop.stop)
    loop.run_forever()
    assert infinistore.get_kvmap_len() == 0, "the server holds keys that the client deleted"


def client(pipe):
    import infinistore

    config = infinistore.ClientConfig(
        host_addr="127.0.0.1", service_port=pipe.recv(), connection_type=infinistore.TYPE_RDMA, **DEVICE
    )
    connection = infinistore.InfinityConnection(config)
    connection.connect()
    memory = numpy.zeros(LARGEST, numpy.uint8)
    connection.register_mr(memory.ctypes.data, LARGEST)
    for seed, (count, size) in enumerate(BLOCKS):
        asyncio.run(exchange(connection, memory, seed, count, size))
    # With values left, InfiniStore's server crashes at exit: their destructors use its logger, which is gone.
    keys = [f"{seed}-{block}" for seed, (count, _) in enumerate(BLOCKS) for block in range(count)]
    assert connection.delete_keys(keys) == len(keys), "the server deleted another number of keys"
    assert not connection.check_exist(keys[0]), "a key exists after it was deleted"
    connection.close()
    pipe.send(None)
    print("all transfers compared", flush=True)


async def exchange(connection, memory, seed, count, size):
    total, address = count * size, memory.ctypes.data
    blocks = [(f"{seed}-{block}", block * size) for block in range(count)]
    memory[:total] = pattern(total, seed)
    start = time.monotonic()
    await connection.rdma_write_cache_async(blocks, size, address)
    memory[:total] = 0
    # In the opposite order, so that each value must come from its key.
    mirrored = [(key, total - size - offset) for key, offset in blocks]
    await connection.rdma_read_cache_async(mirrored, size, address)
    spent = time.monotonic() - start
    found = memory[:total].reshape(count, size)[::-1].reshape(total)
    assert numpy.array_equal(found, pattern(total, seed)), f"{count} values of {size} bytes came back wrong"
    print(f"{count} values of {size} bytes stored and fetched in {spent * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    sys.exit(run(server, client))
