# SPDX-License-Identifier: Apache-2.0
"""The modelled clock's times of loads and stores (its "prices") follow from the preset."""

from __future__ import annotations

from tests.demo.prices import INSTRUCTION_PS, line_ps, preset_prices


def test_a_line_takes_its_bytes_divided_by_the_bandwidth() -> None:
    assert line_ps(64e9) == 1000


def test_one_thread_gets_a_twelfth_of_the_sockets_bandwidths() -> None:
    prices = preset_prices("cxl", 1)
    assert prices.instruction_ps == INSTRUCTION_PS
    # The time of a cache line of 64 bytes at the bandwidths of the preset cxl for one thread: fast
    # tier 105/12 GB/s, slow tier 24/12 GB/s for loads and 20/12 GB/s for stores.
    assert prices.load_ps == (7314, 32000)
    assert prices.store_ps == (7314, 38400)
