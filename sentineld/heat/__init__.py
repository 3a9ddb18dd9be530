# SPDX-License-Identifier: Apache-2.0
"""Sessions of policy `temperature`: they keep processes without the shim within a budget, by
swap."""
