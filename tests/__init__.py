# SPDX-License-Identifier: Apache-2.0
"""Tests of sentineld: unit, integration, benchmarks, and the two-tier machine (tests/vm)."""
