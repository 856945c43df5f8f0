"""ForkServer: imports workers' modules, forks workers, and kills them when the sampler's process dies.

It runs no user code and starts no thread, so it always notices the end of a worker or of the sampler, and can
kill a worker with every process that its environment started. It creates no named files or sockets, so
nothing is left behind if a process is killed.

The sampler's process has one fork server per start method. The `forkserver` server imports modules in
advance, including torch on request (about two seconds, in which it does nothing else); the `spawn` server
imports none. This module imports neither numpy nor gymnasium: a caller that will need workers can call
`running_server` before it imports them.
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
"""A report of the server about a worker: a Status and its value."""

# A worker's id. The server forks the worker if three descriptors come with the id; otherwise it kills it.
_REQUEST = struct.Struct("<q")
_TORCH = -1  # Sent instead of an id to import torch.
# Only `sys` is imported before `sys.path` is set: a file random.py in the working folder must not be found.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; from rollout_cli.samplers.processes.fork_server import serve; "
    "serve(int(sys.argv[1]), sys.argv[2])"
)
_SECOND_MS = 1000
NO_ROOM = "use fewer workers: the limit of processes or open files is reached (`ulimit -a` shows the limits)"


class Status(IntEnum):
    """State of a worker; its value is the process id, the exit status, or the errno of the fork."""

    FORKED = 0
    ENDED = 1
    FAILED = 2
    LOST = 3  # The server has died. The sampler sets this state, since the server cannot report it.


class ForkServer:
    """The sampler's side of one fork server; thread-safe."""

    def __init__(self, method: StartMethod) -> None:
        # The script's folder goes last: the server does not need the user's modules in it. It stays first if
        # this package was found there.
        try:
            folders = list(map(os.path.abspath, sys.path))
        except FileNotFoundError:  # The working folder, which `python -c` and notebooks search, was deleted.
            folders = [entry or os.devnull for entry in sys.path]
        if folders[0] != str(Path(__file__).absolute().parents[3]):
            folders.append(folders.pop(0))
        with contextlib.ExitStack() as undo:
            try:
                self._control, theirs = socket.socketpair()
                undo.callback(self._control.close)
                with theirs:
                    # Without -P, Python 3.13.0 cannot import `socket` if the working folder was deleted.
                    self._process = subprocess.Popen(  # noqa: S603  This Python, with our own arguments.
                        [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), method, *folders],
                        stdin=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        env={**WORKER_VARIABLES, **os.environ},
                        # A signal to the sampler's process group must not reach the server and its workers.
                        start_new_session=True,
                    )
            except OSError as error:
                raise WorkerError(
                    f"cannot start workers: {error}", code="worker-start", hint=NO_ROOM
                ) from error
            undo.pop_all()
        self._owner = os.getpid()
        self.has_forked = False  # Whether it has reported a worker; set by the reader of the report.

    @property
    def is_usable(self) -> bool:
        """Whether the server runs and was started by this process."""
        try:
            return self._owner == os.getpid() and self._control.recv(1, socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:  # The server died, or its socket was closed.
            return False

    def import_torch(self) -> None:
        """Import torch before the next worker is forked, so that workers start seconds sooner."""
        with contextlib.suppress(ConnectionError):  # See `fork`.
            self._control.sendall(_REQUEST.pack(_TORCH))

    def fork(self, worker_id: int, channel: int, box: int, status: int) -> None:
        """Fork a worker with a new id and copies of the descriptors of its channel and crash box.

        The server writes RECORDs about the worker to `status`, the write end of a pipe.
        """
        # If the server has just died, the pipe closes, and its reader notices.
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._control, [_REQUEST.pack(worker_id)], [channel, box, status])

    def kill(self, worker_id: int) -> None:
        """Kill a worker and its environment's processes; do nothing if the worker has ended."""
        with contextlib.suppress(OSError):  # The server has died, or its socket was closed.
            self._control.sendall(_REQUEST.pack(worker_id))

    def abandon(self) -> None:
        """Kill a server that is ending or blocked by an import; its workers are not killed."""
        self._process.kill()
        self._process.wait()
        self._control.close()  # A worker that has just been forked keeps the other end open.

    def close(self) -> None:
        """End the server and all its workers."""
        self._control.close()
        if self._owner == os.getpid():
            if not self.has_forked:  # A program that ends early must not wait for the server's imports.
                self._process.kill()
            self._process.wait()


_servers: dict[StartMethod, ForkServer] = {}


def running_server(method: StartMethod) -> ForkServer:
    """Return this process's server for a start method; start it if needed, without waiting for its imports.

    Raises:
        ConfigError: If the system cannot fork processes.
    """
    if not hasattr(os, "fork"):
        raise ConfigError(
            "worker processes need os.fork, which is not available on this system",
            code="no-fork",
            hint='run the workers in this process: {sampler="local"}',
        )
    server = _servers.get(method)
    if server is None or not server.is_usable:
        if server is not None:
            server.close()
        server = _servers[method] = ForkServer(method)
        # Otherwise the server would end slightly later than this process.
        atexit.register(server.close)
    return server


# -- in the server's process -----------------------------------------------------------------------


def serve(descriptor: int, method: StartMethod) -> NoReturn:
    """Run the server until the sampler's process ends; `descriptor` is the server's end of the control socket."""
    sampler = os.getppid()
    try:
        # A terminal or a job scheduler signals every process, but only the sampler decides what to do. The
        # signals are not ignored (SIG_IGN), since programs that an environment starts would inherit that.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        if method == "forkserver":
            # An import that fails here fails again in the worker, and the user sees the worker's traceback.
            with contextlib.suppress(Exception):
                # Imported here, because the sampler's process does not need this module.
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
        self._workers: dict[int, tuple[int, int]] = {}  # Pid and status pipe of each worker, by its id.
        self._woken, self._waker = os.pipe()
        for descriptor in (self._woken, self._waker):
            os.set_blocking(descriptor, False)

    def serve(self) -> NoReturn:
        """Serve until the sampler's process has ended, then kill all workers and exit."""
        setproctitle.setproctitle("rollout-fork-server")
        _redirect_standard_streams()
        # The sampler may have been started with blocked signals, which child processes inherit.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        # A child process of the sampler may keep the socket open, so a change of parent also ends the loop.
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
        """Handle one request; return whether the sampler's end of the socket is open."""
        try:
            request, descriptors, _, _ = socket.recv_fds(self._control, _REQUEST.size, 3)
        except ConnectionError:
            return False
        if not request:
            return False
        (worker_id,) = _REQUEST.unpack(request)
        if worker_id == _TORCH:
            # An import that fails here fails again in the worker, as in `serve`.
            with contextlib.suppress(Exception):
                import torch  # noqa: F401, PLC0415  Only some policies need torch.
        elif descriptors:
            self.fork(worker_id, *descriptors)
        elif worker_id in self._workers:
            kill_group(self._workers[worker_id][0])
        return True

    def fork(self, worker_id: int, channel: int, box: int, status: int) -> None:
        """Fork a worker, which takes over the descriptors, and report its pid, or the errno if fork fails."""
        try:
            with warnings.catch_warnings():
                # The user may have chosen several threads for linear algebra; these libraries survive a fork.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            _report(status, Status.FAILED, error.errno or 0)
            os.close(status)
        else:
            if pid == 0:
                self._become_worker(channel, box, status)
            with contextlib.suppress(OSError):  # The worker may have done so already.
                os.setpgid(pid, pid)
            self._workers[worker_id] = pid, status
            _report(status, Status.FORKED, pid)
        os.close(channel)
        os.close(box)

    def _become_worker(self, channel: int, box: int, status: int) -> NoReturn:
        try:
            # A separate process group, so that the environment's processes are killed with the worker.
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
            from rollout_cli.samplers.processes.worker_main import worker_main  # noqa: PLC0415  See `serve`.

            worker_main(channel, box)
        except BaseException:  # noqa: BLE001  The process ends here.
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self) -> None:
        for worker_id, (pid, status) in list(self._workers.items()):
            ended, wait_status = os.waitpid(pid, os.WNOHANG)
            if ended:
                # The system does not reuse a group's id while the group has members, so this kills only
                # processes of this worker.
                kill_group(pid)
                del self._workers[worker_id]
                _report(status, Status.ENDED, os.waitstatus_to_exitcode(wait_status))
                os.close(status)


def _redirect_standard_streams() -> None:
    """Give workers an empty standard input, and redirect their standard output to standard error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    with contextlib.suppress(OSError):  # Standard error may be closed.
        os.dup2(2, 1)


def _report(status: int, kind: Status, value: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # The sampler no longer tracks the worker.
        os.write(status, RECORD.pack(kind, value))


def kill_group(pid: int) -> None:
    """Kill the processes of a worker's group; do nothing if the group has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
