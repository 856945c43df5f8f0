"""What the fork server imports before the first worker is forked.

Ctrl-C reaches every process of a terminal. The server ignores it once it serves; what it imports takes longer, and an
interrupted import would show its traceback below the message of the command that was interrupted.
"""

import signal

_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)

import multiprocessing.popen_forkserver  # noqa: E402, F401 - every worker unpickles its own process
import pkgutil  # noqa: E402, F401 - every worker runs the main module again

import rollout_cli.samplers.worker_process  # noqa: E402, F401

# The server may serve others than us, whose processes are to be interrupted as ever.
signal.signal(signal.SIGINT, _handler)
