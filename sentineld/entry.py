# SPDX-License-Identifier: Apache-2.0
"""Turns an error of sentineld or sentinelctl into a message on stderr and an exit status."""

from __future__ import annotations

import errno
import os
import sys

import click

from sentineld.base.errors import SentinelError

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run_command(command: click.Command) -> None:
    """Run a click command with this process's arguments."""
    try:
        command.main(standalone_mode=False)
    except SentinelError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_status)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except MemoryError:
        click.echo("error: there is not enough memory", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader closed the pipe.
        _discard_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _WRITE_ERRORS or error.filename is not None:
            raise
        click.echo(f"error: cannot write the output: {error.strerror}", err=True)
        _discard_output()
        sys.exit(1)


def _discard_output() -> None:
    """Discard the output that stdout still buffers. Otherwise the flush at exit would fail, too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
