"""A shell in a terminal, for tests of what TAB makes of a line."""

import os
import pty
import re
import select
import time
import unittest


def typed(shell, prepare, keys, folder):
    """The words that a line has become when `keys` are typed into the shell (a list, its command) in `folder`, behind the line
    `prepare`. The line is not run: printf is put before it."""
    try:
        child, terminal = pty.fork()
    except OSError as error:  # a container or chroot without /dev/pts
        raise unittest.SkipTest(f"no terminal can be made here: {error}") from error
    if child == 0:
        os.chdir(folder)
        os.environ.update(TERM="dumb", INPUTRC="/dev/null", HISTFILE="", PS1="$ ")
        os.execvp(shell[0], shell)
    text, end = b"", time.monotonic() + 60
    try:
        os.write(terminal, f"{prepare}; echo re''ady\n".encode())
        pending = keys.encode() + b"\x01printf '<%s>' \x05; exit\n"
        while time.monotonic() < end:
            if not select.select([terminal], [], [], 1)[0]:
                continue
            try:
                text += os.read(terminal, 4096)
            except OSError:  # the shell has ended
                break
            if pending and b"ready" in text:
                os.write(terminal, pending)
                pending = b""
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    return re.findall(r"<([^<>%\r\n]*)>", text.decode(errors="replace"))
