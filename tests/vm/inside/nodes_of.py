# SPDX-License-Identifier: Apache-2.0
"""Prints on which nodes memory of a process is: `python3 nodes_of.py PID (ADDRESS BYTES)...`.

The output is a JSON array with an object for each range. "range": the node of each page that lies
completely in the range; see query_pages(). "mapping": the number of pages on each node in the
mapping that contains the range; from numa_maps.
"""

import json
import re
import sys
from pathlib import Path

from sentineld.migrate.syscalls import page_addresses, query_pages
from sentineld.model.records import PAGE_BYTES

process, *numbers = map(int, sys.argv[1:])
mappings = [
    (int(row.split()[0], 16), row)
    for row in Path(f"/proc/{process}/numa_maps").read_text().splitlines()
]
found = []
for address, size_bytes in zip(numbers[::2], numbers[1::2], strict=True):
    begin = -(-address // PAGE_BYTES) * PAGE_BYTES
    end = (address + size_bytes) // PAGE_BYTES * PAGE_BYTES
    _, mapping = max(row for row in mappings if row[0] <= begin)
    found.append(
        {
            "range": query_pages(process, page_addresses(begin, end - begin)).tolist(),
            "mapping": {node: int(pages) for node, pages in re.findall(r" N(\d+)=(\d+)", mapping)},
        }
    )
print(json.dumps(found))
