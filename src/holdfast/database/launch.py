"""Turn into a Postgres program: as its own user, in its folder, and only for as long as its owner lives.

Called by: cluster.py and binaries.py, through `command()`. The second half runs as a script, in an interpreter of its
own that becomes the program by `exec`. That is why there is no `preexec_fn` anywhere: code between fork and exec of a
process that has threads can deadlock. It starts before every server, so it imports next to nothing.

What always holds:
- the program never runs as root, and never inherits the owner's environment or working folder;
- the kernel ends it when the thread that started it ends, so whoever starts a program stays until it is over. (Only
  Linux does that. Elsewhere a server outlives an owner that was killed, and has to be ended by hand.)
- no folder is opened to anybody. A folder whose parents the user may not enter is opened before the rights are given
  up, and is passed on as a descriptor: `/proc/self/fd/N` leads there without a walk through the parents.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys

FOLDER = "{folder}"  # in the program's arguments, stands for the way into the folder
USER = "nobody"
PR_SET_PDEATHSIG = 1
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def server_account() -> pwd.struct_passwd | None:
    """The user that the server runs as when we are root, since Postgres refuses root; None means: as ourselves."""
    return pwd.getpwnam(USER) if os.geteuid() == 0 else None


def command(
    program: list[str], *, account: pwd.struct_passwd | None, folder: str, death: signal.Signals = signal.SIGKILL
) -> list[str]:
    """The arguments that start a program which gets the signal `death` when the calling thread ends."""
    uid, gid = (account.pw_uid, account.pw_gid) if account else (-1, -1)
    ours = [str(os.getpid()), str(uid), str(gid), str(int(death)), folder]
    return [sys.executable, "-I", "-S", __file__, *ours, *program]


def main(arguments: list[str]) -> None:
    owner, uid, gid, death, folder, *program = arguments
    # A shell ignores SIGINT and SIGQUIT in what it puts in the background, and a thread may block them: both inherited.
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
    """Asks the kernel for a signal at the owner's end. A change of user would clear it, so it comes after that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death, 0, 0, 0)
    if os.getppid() != owner:  # it ended before we asked
        sys.exit("the owner of this server is gone")


def way_into(folder: str, descriptor: int) -> str:
    """The folder's path if we may walk it, else the descriptor's: tried and not computed, so that ACLs count too."""
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
