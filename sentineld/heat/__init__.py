# SPDX-License-Identifier: Apache-2.0
"""Sessions of policy `temperature`: processes without the shim, kept in a budget by swap."""
