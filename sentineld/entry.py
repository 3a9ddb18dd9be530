# SPDX-License-Identifier: Apache-2.0
"""Turns an error of sentineld or sentinelctl into a message on stderr and an exit status."""

from __future__ import annotations

import errno
import sys

import click

from sentineld.base.errors import SentinelError
from sentineld.base.stderr import discard_output, say

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run_command(command: click.Command) -> None:
    """Run a click command with this process's arguments."""
    try:
        command.main(standalone_mode=False)
    except SentinelError as error:
        say(f"error: {error}")
        sys.exit(error.exit_status)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except MemoryError:
        say("error: there is not enough memory")
        sys.exit(1)
    except BrokenPipeError:
        # The reader closed the pipe.
        _discard_stdout()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _WRITE_ERRORS or error.filename is not None:
            raise
        say(f"error: cannot write the output: {error.strerror}")
        _discard_stdout()
        sys.exit(1)


def _discard_stdout() -> None:
    """Discard the output that stdout still buffers. Otherwise the flush at exit would fail, too."""
    discard_output(sys.stdout.fileno())
