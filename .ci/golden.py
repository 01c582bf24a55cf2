#!/usr/bin/env python3
"""Checks that a file of tokens has the patches of a golden result, bit for bit.

usage: .ci/golden.py FILE GOLDEN
"""

import json
import struct
import sys


def tensor(path, name):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    start, end = json.loads(data[8 : 8 + n])[name]["data_offsets"]
    return data[8 + n + start : 8 + n + end]


made, golden = sys.argv[1:]
for name in ("sides", "cu_seqlens", "patch_id"):
    if tensor(made, name) != tensor(golden, name):
        sys.exit(f"{made}: {name} is not that of {golden}")
print(f"{made} agrees with {golden}")
