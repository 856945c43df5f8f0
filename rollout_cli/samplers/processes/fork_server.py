"""The fork server imports what workers need, forks them, and ends them when the sampler's process dies.

It runs no user code and starts no thread, so it is there to notice the end of a worker, or of the sampler,
and to kill a worker with all that its environment started. Nothing here has a name in a file system, so
nothing is left behind, whoever is killed.

The sampler's process has one for each start method: that of `forkserver` imports ahead, also torch where it
is asked to, in whose two seconds it does nothing else; that of `spawn` imports nothing. This module loads
neither numpy nor gymnasium: who knows early that workers will come calls `running_server` before it imports
these.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
import warnings
from enum import IntEnum
from pathlib import Path
from typing import Literal, NoReturn

import setproctitle

from rollout_cli.cores import WORKER_VARIABLES
from rollout_cli.errors import ConfigError, WorkerError

StartMethod = Literal["forkserver", "spawn"]

RECORD = struct.Struct("<qq")
"""What the server reports of a worker: a Status, and its value."""

# A worker's id. With three descriptors it is to be forked, without any to be killed.
_REQUEST = struct.Struct("<q")
_TORCH = -1  # In place of an id: torch is to be imported.
# Until `sys.path` is set, only `sys` is imported: a file random.py in the working folder must not be found.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; from rollout_cli.samplers.processes.fork_server import serve; "
    "serve(int(sys.argv[1]), sys.argv[2])"
)
_SECOND_MS = 1000
NO_ROOM = (
    "the system allows no more processes or open files (`ulimit -a` shows the limits); use fewer workers"
)


class Status(IntEnum):
    """What became of a worker, with its process id, its exit status, or the errno of the fork."""

    FORKED = 0
    ENDED = 1
    FAILED = 2
    LOST = 3  # Its server has died; never reported, for nobody is there to do it.


class ForkServer:
    """The sampler's side of one fork server. It may be used by several threads."""

    def __init__(self, method: StartMethod) -> None:
        # A script's own folder comes last: it is where its user's modules lie, and the server needs none of
        # these. Where this package was found first, it must be found first again.
        try:
            folders = list(map(os.path.abspath, sys.path))
        except FileNotFoundError:  # The working folder, which `python -c` and notebooks look in, is gone.
            folders = [entry or os.devnull for entry in sys.path]
        if folders[0] != str(Path(__file__).absolute().parents[3]):
            folders.append(folders.pop(0))
        with contextlib.ExitStack() as undo:
            try:
                self._control, theirs = socket.socketpair()
                undo.callback(self._control.close)
                with theirs:
                    # Without -P, Python 3.13.0 cannot import `socket` where the working folder is gone.
                    self._process = subprocess.Popen(  # noqa: S603  This Python, with words of ours.
                        [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), method, *folders],
                        stdin=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        env={**WORKER_VARIABLES, **os.environ},
                        # A signal to the sampler's group leaves it, and so the workers, alone.
                        start_new_session=True,
                    )
            except OSError as error:
                raise WorkerError(
                    f"workers cannot be started: {error}", code="worker-start", hint=NO_ROOM
                ) from error
            undo.pop_all()
        self._owner = os.getpid()
        self.has_forked = False  # Whether it has reported a worker; who reads that report says so.

    @property
    def is_usable(self) -> bool:
        """Return whether it runs and is this process's own."""
        try:
            return self._owner == os.getpid() and self._control.recv(1, socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:  # It died, or was closed.
            return False

    def import_torch(self) -> None:
        """Import torch before the next worker is forked, so that no worker spends seconds on it."""
        with contextlib.suppress(ConnectionError):  # As below.
            self._control.sendall(_REQUEST.pack(_TORCH))

    def fork(self, worker_id: int, channel: int, box: int, status: int) -> None:
        """Fork a worker, under a new id, from copies of the descriptors of its channel and crash box.

        RECORDs of what becomes of it go to the writing end of a pipe, `status`.
        """
        # A server that has just died is noticed by the pipe, which then closes.
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._control, [_REQUEST.pack(worker_id)], [channel, box, status])

    def kill(self, worker_id: int) -> None:
        """Kill a worker and what its environment started; a worker that has ended is no error."""
        with contextlib.suppress(OSError):  # The server has died, or was closed since.
            self._control.sendall(_REQUEST.pack(worker_id))

    def abandon(self) -> None:
        """Kill a server that an import holds up, or that ends already; this kills none of its workers."""
        self._process.kill()
        self._process.wait()
        self._control.close()  # A worker that has just been forked holds the other end open.

    def close(self) -> None:
        """End the server, and with it all its workers."""
        self._control.close()
        if self._owner == os.getpid():
            if not self.has_forked:  # A program that ends early does not wait for its imports.
                self._process.kill()
            self._process.wait()


_servers: dict[StartMethod, ForkServer] = {}


def running_server(method: StartMethod) -> ForkServer:
    """Return this process's server for a start method; start one if needed, without waiting for imports.

    Raises:
        ConfigError: If the system cannot fork processes.
    """
    if not hasattr(os, "fork"):
        raise ConfigError(
            "worker processes need os.fork, which this system does not have",
            code="no-fork",
            hint='run the workers in this process: {sampler="local"}',
        )
    server = _servers.get(method)
    if server is None or not server.is_usable:
        if server is not None:
            server.close()
        server = _servers[method] = ForkServer(method)
        # It would end by itself, but a little later than this process.
        atexit.register(server.close)
    return server


# -- in the server's process -----------------------------------------------------------------------


def serve(descriptor: int, method: StartMethod) -> NoReturn:
    """Serve in a process of its own, until the sampler's ends; the control socket is `descriptor`."""
    sampler = os.getppid()
    try:
        # A terminal, or who ends a whole job, signals every process: the decision is the sampler's. The
        # signals are not set to be ignored, for a program that an environment starts would inherit that.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        if method == "forkserver":
            # A module that cannot be imported fails again in the worker, whose traceback reaches the user.
            with contextlib.suppress(Exception):
                # The process that starts this one need not import it.
                from rollout_cli.samplers.processes import worker_main  # noqa: F401, PLC0415
        Server(socket.socket(fileno=descriptor), sampler).serve()
    except BaseException:  # noqa: BLE001  The process ends here.
        traceback.print_exc()
    finally:
        os._exit(1)


class Server:
    """Forks, kills and reaps workers."""

    def __init__(self, control: socket.socket, sampler: int) -> None:
        self._control = control
        self._sampler = sampler
        self._workers: dict[int, tuple[int, int]] = {}  # By a worker's id: its pid and its status pipe.
        self._woken, self._waker = os.pipe()
        for descriptor in (self._woken, self._waker):
            os.set_blocking(descriptor, False)

    def serve(self) -> NoReturn:
        """Serve until the sampler's process has ended, then kill all workers, and exit."""
        setproctitle.setproctitle("rollout-fork-server")
        _redirect_standard_streams()
        # The sampler may have been started with signals blocked, which processes inherit.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        # A process that the sampler's has forked may hold its end of the socket open; then its parent tells.
        while os.getppid() == self._sampler:
            ready = {descriptor for descriptor, _ in poll.poll(_SECOND_MS)}
            if self._woken in ready:
                os.read(self._woken, 1 << 12)
                self._reap()
            if self._control.fileno() in ready and not self._answer():
                break
        for pid, _ in self._workers.values():
            kill_group(pid)
        os._exit(0)

    def _answer(self) -> bool:
        """Do what is asked; return whether the sampler's end of the socket is open."""
        try:
            request, descriptors, _, _ = socket.recv_fds(self._control, _REQUEST.size, 3)
        except ConnectionError:
            return False
        if not request:
            return False
        (worker_id,) = _REQUEST.unpack(request)
        if worker_id == _TORCH:
            # Where that fails, it fails again in the worker, as above.
            with contextlib.suppress(Exception):
                import torch  # noqa: F401, PLC0415 - only some policies need it
        elif descriptors:
            self.fork(worker_id, *descriptors)
        elif worker_id in self._workers:
            kill_group(self._workers[worker_id][0])
        return True

    def fork(self, worker_id: int, channel: int, box: int, status: int) -> None:
        """Fork a worker, which takes the descriptors, and report it; or report why the system refuses it."""
        try:
            with warnings.catch_warnings():
                # The user may have chosen several threads for linear algebra, whose libraries can be forked.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            _report(status, Status.FAILED, error.errno or 0)
            os.close(status)
        else:
            if pid == 0:
                self._become_worker(channel, box, status)
            with contextlib.suppress(OSError):  # It has done so itself already.
                os.setpgid(pid, pid)
            self._workers[worker_id] = pid, status
            _report(status, Status.FORKED, pid)
        os.close(channel)
        os.close(box)

    def _become_worker(self, channel: int, box: int, status: int) -> NoReturn:
        try:
            # A group of its own lets what the environment starts end with it.
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            for descriptor in (
                self._woken,
                self._waker,
                status,
                *(status for _, status in self._workers.values()),
            ):
                os.close(descriptor)
            from rollout_cli.samplers.processes.worker_main import worker_main  # noqa: PLC0415 - as above

            worker_main(channel, box)
        except BaseException:  # noqa: BLE001  The process ends here.
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self) -> None:
        for worker_id, (pid, status) in list(self._workers.items()):
            ended, wait_status = os.waitpid(pid, os.WNOHANG)
            if ended:
                # The group keeps its number while it has members, so no stranger can be hit as long as one
                # lives.
                kill_group(pid)
                del self._workers[worker_id]
                _report(status, Status.ENDED, os.waitstatus_to_exitcode(wait_status))
                os.close(status)


def _redirect_standard_streams() -> None:
    """Let workers read nothing, and write to standard error what they write to standard output."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    with contextlib.suppress(OSError):  # There may be no standard error.
        os.dup2(2, 1)


def _report(status: int, kind: Status, value: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # The sampler has given the worker up.
        os.write(status, RECORD.pack(kind, value))


def kill_group(pid: int) -> None:
    """Kill the processes of a worker's group; one that has ended is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
