"""Computes the ICRC of every frame of a capture twice, without any code of ferroce.

Prints one line per frame: what stands in the frame, what scapy's RoCE layer computes, and what zlib's CRC-32 gives over
the fields as the specification names them. A '-' stands for a value that this version of scapy cannot compute.
"""

import inspect
import sys
import zlib

from scapy.contrib.roce import BTH
from scapy.layers.inet6 import IPv6
from scapy.packet import raw
from scapy.utils import rdpcap

ETHERNET = 14
UDP = 8


def by_scapy(frame):
    if IPv6 in frame and "IPv6" not in inspect.getsource(BTH.compute_icrc):
        return "-"
    frame = frame.copy()
    del frame[BTH].icrc
    return raw(frame)[-4:].hex()


def by_definition(frame):
    data = bytearray(raw(frame)[ETHERNET:-4])
    if data[0] >> 4 == 4:
        ip = 20
        ones = [1, 8, 10, 11]  # type of service, time to live, checksum
    else:
        ip = 40
        data[0] |= 0x0F  # traffic class and flow label fill the first word behind the version
        ones = [1, 2, 3, 7]
    ones += [ip + 6, ip + 7]  # UDP checksum
    ones += [ip + UDP + 4]  # FECN, BECN and reserved bits of the BTH
    for at in ones:
        data[at] = 0xFF
    return zlib.crc32(b"\xff" * 8 + bytes(data)).to_bytes(4, "little").hex()


for frame in rdpcap(sys.argv[1]):
    print(raw(frame)[-4:].hex(), by_scapy(frame), by_definition(frame))
