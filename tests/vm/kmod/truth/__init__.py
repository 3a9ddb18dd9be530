# SPDX-License-Identifier: Apache-2.0
"""The truth test: random programs whose accesses are known, against the module's log.

`programs` draws programs, `runner` has the guest run them (the C files here,
whose language truth.h describes), `outcome` reads what came back and `judge`
compares. `kept/` holds programs worth running always.
"""
