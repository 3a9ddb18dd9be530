# SPDX-License-Identifier: Apache-2.0
"""sentineld's tests: unit, integration, benchmarks, and the two-tier guest (tests/vm)."""
