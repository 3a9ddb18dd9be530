# SPDX-License-Identifier: Apache-2.0
"""The truth test: compares the module's log with random programs whose accesses are known.

`programs` draws programs, `runner` runs them in the guest (with the C files of this
folder; truth.h describes the language), `outcome` parses the results (the log and the
accesses), and `judge` compares the two. `kept/` holds regression tests.
"""
