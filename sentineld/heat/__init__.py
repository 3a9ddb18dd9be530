# SPDX-License-Identifier: Apache-2.0
"""Sessions of policy `temperature`, which keep processes without the shim within a budget by paging
memory out to swap."""
