"""Start a Postgres program as the server's user, in its folder, and tied to the life of its owner.

Called by: cluster.py and binaries.py, through `command()`. The second half runs as a script in a separate interpreter, which
becomes the program by `exec`. This replaces `preexec_fn`, which can deadlock in a process with threads. It runs before every
server, so it imports very little.

Invariants:
- the program never runs as root, and never inherits the owner's environment or working directory;
- the operating system ends it when the thread that started it ends, so that thread must live as long as the program. (Only
Linux does that. On other systems a server outlives a killed owner and has to be stopped by hand.) - permissions of folders are
never changed. If the user may not enter a parent folder, the folder is opened before the privileges are dropped, and passed on
as a file descriptor: `/proc/self/fd/N` leads there without access to the parents.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys

FOLDER = "{folder}"  # placeholder in the program's arguments for the path of the folder
USER = "nobody"
PR_SET_PDEATHSIG = 1
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def server_account() -> pwd.struct_passwd | None:
    """The user that the server runs as if this process is root, because Postgres refuses root; None: the current user."""
    return pwd.getpwnam(USER) if os.geteuid() == 0 else None


def command(
    program: list[str], *, account: pwd.struct_passwd | None, folder: str, death: signal.Signals = signal.SIGKILL
) -> list[str]:
    """The command line that starts a program, which gets the signal `death` when the calling thread ends."""
    uid, gid = (account.pw_uid, account.pw_gid) if account else (-1, -1)
    ours = [str(os.getpid()), str(uid), str(gid), str(int(death)), folder]
    return [sys.executable, "-I", "-S", __file__, *ours, *program]


def main(arguments: list[str]) -> None:
    owner, uid, gid, death, folder, *program = arguments
    # A shell ignores SIGINT and SIGQUIT for background processes, and a thread may block them. Both are inherited, so reset
    # them.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o077)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.chdir("/")

    if int(uid) >= 0:
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    die_with(int(owner), int(death))

    way = way_into(folder, descriptor)
    os.execve(program[0], [part.replace(FOLDER, way) for part in program], ENVIRONMENT)  # noqa: S606 - that is the point


def die_with(owner: int, death: int) -> None:
    """Request a signal at the owner's end (PR_SET_PDEATHSIG). A change of user clears it, so call this after that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death, 0, 0, 0)
    if os.getppid() != owner:  # it ended before the request
        sys.exit("the owner of this server is gone")


def way_into(folder: str, descriptor: int) -> str:
    """The folder's path if it is accessible, otherwise the descriptor's path. It is tried, so that ACLs count too."""
    try:
        if os.path.samestat(os.stat(folder), os.fstat(descriptor)):  # noqa: PTH116 - pathlib would cost 20 ms
            return folder
    except PermissionError:
        pass
    os.set_inheritable(descriptor, True)
    way = f"/proc/self/fd/{descriptor}"
    if not os.path.isdir(way):  # noqa: PTH112
        sys.exit(f"the user {pwd.getpwuid(os.getuid()).pw_name} may not enter the folders above {folder}")
    return way


if __name__ == "__main__":
    main(sys.argv[1:])
