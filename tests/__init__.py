# SPDX-License-Identifier: Apache-2.0
"""sentineld's tests: unit, integration, attacks (tests/hostile), fuzzers, benchmarks, the demo, and
the two-tier guest (tests/vm)."""
