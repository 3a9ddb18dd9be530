# SPDX-License-Identifier: Apache-2.0
"""Page temperature: which pages of a process are used most, from the bits that scans find."""
