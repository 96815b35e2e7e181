"""Processes: start-up, barriers, preemption and exit codes.

`initialize` comes before any other jax call, in a single process too: jax's coordination service is what
turns SIGTERM into a flag that all processes see at the same step. Without it the signal kills at once.
"""

import contextlib
import importlib.util
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable

import jax
import numpy as np
from jax._src.distributed import global_state  # private; orbax reads it too
from jax.experimental import multihost_utils

from vit_jax import files
from vit_jax.errors import UsageError
from vit_jax.peers import PeerWatch

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2  # before any work: flags, config, data, workdir
EXIT_PREEMPTED = 42  # saved, and wants to be started again

_log = logging.getLogger(__name__)

# One process can't lose a peer, but it can be suspended (laptop lid, Ctrl-Z) for any time: 100 days.
_HEARTBEAT_ALONE_S = 100 * 24 * 3600

_BACKSTOP_S = 20

_ADDRESS, _COUNT, _ID = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def initialize(*, init_timeout_s: int, heartbeat_timeout_s: int, shutdown_timeout_s: int) -> None:
    """Join the processes of this run; the first jax call of the program.

    In order: `JAX_COORDINATOR_ADDRESS` (host:port), `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`; a cluster jax
    knows (SLURM under srun, Open MPI, TPU pods, indexed Kubernetes jobs); else one process alone.
    `JAX_NUM_PROCESSES=1` by itself forces the last. Times are in seconds.

    Raises:
      UsageError: variables incomplete or senseless, or an address that can't be used.

    When the others don't come within `init_timeout_s` jax aborts the process (134); a warning says so before.
    """
    if jax.distributed.is_initialized():
        return
    explicit = _from_environment()
    if explicit is not None:
        address, count, process_id = explicit
        _connect(
            f"process {process_id} of {count}",
            init_timeout_s,
            dict(coordinator_address=address, num_processes=count, process_id=process_id),
            heartbeat_timeout_s,
            shutdown_timeout_s,
        )
    elif os.environ.get(_COUNT) != "1" and _in_cluster():
        _connect("this process", init_timeout_s, {}, heartbeat_timeout_s, shutdown_timeout_s)
    else:
        _initialize_alone(shutdown_timeout_s)


def is_main() -> bool:
    """Whether this is process 0, which writes logs and records."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Wait until every process stands at the barrier of this name; nothing in a single process."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def meet(name: str, timeout_s: float) -> None:
    """Wait until every process is here, without a collective, which may give up after half a minute."""
    if jax.process_count() > 1:
        global_state.client.wait_at_barrier(f"vit_jax/{name}/{next(_met)}", round(timeout_s * 1000))


_met = itertools.count()  # a name serves once


def main_says(flag: bool) -> bool:
    """What process 0 passed, on all processes: for decisions that hang on a clock. All call it together."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.broadcast_one_to_all(np.array(flag)))


# How often `preempted` was asked. jax compares such numbers across processes, and they may only grow: a run's own
# steps begin again with every run of a sweep.
_asked = itertools.count(1)


def preempted() -> bool:
    """Whether to save now and leave: some process got SIGTERM, and all say True at the same call.

    Call it at every step on all processes, equally often. The signal is noticed within two seconds. Always False
    before `initialize`.
    """
    return bool(multihost_utils.reached_preemption_sync_point(next(_asked)))


_watch: PeerWatch | None = None
_saved_step: Callable[[], int | None] | None = None
_LISTING_S = 3.0  # storage may be what is gone


def continues_from(saved_step: Callable[[], int | None]) -> None:
    """Notes who knows the newest step that is saved, for what is said when a process is lost."""
    global _saved_step
    _saved_step = saved_step


def _remedy() -> str:
    again, step = "start the same command again on all hosts", None
    if _saved_step is not None:
        with contextlib.suppress(Exception):
            step = files.within(_LISTING_S, _saved_step)
    return again if step is None else f"{again}; it continues from step {step}"


def blame_peers(error: BaseException) -> None:
    """Called with an error that a lost process may be the reason of: doesn't return if one is lost.

    A collective fails at once when a process dies (or blocks for good, on other devices); who it was is known when
    its heartbeats stay away.
    """
    cause: BaseException | None = error
    while _watch is not None and cause is not None:
        if isinstance(cause, jax.errors.JaxRuntimeError):
            return _watch.await_verdict()
        cause = cause.__cause__ or cause.__context__
    return None


def depart(code: int, message: str) -> None:
    """Ends a failed process of several, so that the others end too and say why; returns if it is alone."""
    if _watch is not None:
        _watch.depart(code, message)


def shutdown() -> None:
    """Leave the run in order; does nothing before `initialize`.

    To be called once all arrays are done with and only on the way out of a run that ended well: after a
    failure on one process the others won't come to this meeting.
    """
    global _watch
    if _watch is not None:
        _watch.stop()
        _watch = None
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _from_environment() -> tuple[str, int, int] | None:
    given = {name: os.environ[name] for name in (_ADDRESS, _COUNT, _ID) if os.environ.get(name)}
    if given.keys() == {_COUNT} and given[_COUNT] == "1":
        return None
    if _COUNT not in given and _ID not in given and (not given or _in_cluster()):
        return None  # jax reads the address itself, the cluster tells the rest
    missing = [name for name in (_ADDRESS, _COUNT, _ID) if name not in given]
    if missing:
        raise UsageError(
            f"{', '.join(given)} is set but {', '.join(missing)} is not",
            f"set {_ADDRESS}=host:port, {_COUNT} and {_ID} together, or none of them",
        )
    numbers = {}
    for name in (_COUNT, _ID):
        if not given[name].isdecimal():
            raise UsageError(f"{name}={given[name]!r} is not a number", f"set {name} to a whole number")
        numbers[name] = int(given[name])
    count, process_id = numbers[_COUNT], numbers[_ID]
    if process_id >= count:
        raise UsageError(
            f"{_ID}={process_id} does not fit {_COUNT}={count}", f"processes count from 0 to {_COUNT} - 1"
        )
    host, colon, port = given[_ADDRESS].rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(f"{_ADDRESS}={given[_ADDRESS]!r} is no host:port", "for example 10.0.0.2:8476")
    return given[_ADDRESS], count, process_id


def _in_cluster() -> bool:
    """Whether jax should find its processes by itself. Marks that a lone process shows too don't count."""
    env = os.environ
    slurm = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
    if all(name in env for name in slurm) and env["SLURM_NTASKS"] != "1":
        return True
    if "OMPI_MCA_orte_hnp_uri" in env and env.get("OMPI_COMM_WORLD_SIZE") != "1":
        return True
    if "," in env.get("TPU_WORKER_HOSTNAMES", "") or "," in env.get("TPU_PROCESS_ADDRESSES", ""):
        return True
    if "MEGASCALE_COORDINATOR_ADDRESS" in env:
        return True
    if "JOB_COMPLETION_INDEX" in env and "KUBERNETES_SERVICE_HOST" in env:
        return importlib.util.find_spec("kubernetes") is not None
    return _on_tpu_vm()


def _on_tpu_vm() -> bool:
    """A Cloud TPU VM tells its slice through the metadata server alone: ask jax's own table of chips."""
    if importlib.util.find_spec("libtpu") is None or os.environ.get("TPU_SKIP_MDS_QUERY"):
        return False
    try:
        from jax._src import hardware_utils  # private, and may move

        return hardware_utils.num_available_tpu_chips_and_device_id()[0] > 0
    except (ImportError, AttributeError):
        return False


def _connect(who: str, init_timeout_s: int, where: dict, heartbeat_s: int, shutdown_s: int) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    at = f" at {where['coordinator_address']}" if where else ""
    # When time is up jax aborts (134) with nothing but its own stack, so this is said before.
    patience_s = min(30.0, init_timeout_s / 2)
    reminder = threading.Timer(
        patience_s,
        _log.warning,
        (
            "%s still waits for the other processes%s after %.0f s, and gives up after %d s: start the same "
            "command on every host",
            who,
            at,
            patience_s,
            init_timeout_s,
        ),
    )
    reminder.daemon = True
    reminder.start()
    try:
        jax.distributed.initialize(
            **where,
            # The three numbers are known: don't let a scheduler's marks hide devices from this process.
            cluster_detection_method="deactivate" if where else None,
            initialization_timeout=init_timeout_s,
            # Ours comes first and says who is gone; jax's own abort is for when that fails.
            heartbeat_timeout_seconds=heartbeat_s + _BACKSTOP_S,
            shutdown_timeout_seconds=shutdown_s,
        )
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"{who} can't meet the others{at}: {_first_line(error)}",
            f"start the same command on every host, and check that {_ADDRESS} is reachable from all",
        ) from error
    finally:
        reminder.cancel()
    if global_state.num_processes > 1:
        global _watch
        _watch = PeerWatch(
            global_state.client,
            process=global_state.process_id,
            count=global_state.num_processes,
            coordinator=global_state.coordinator_address,
            heartbeat_s=heartbeat_s,
            remedy=_remedy,
        )


def _initialize_alone(shutdown_timeout_s: int) -> None:
    # A proxy for the outer world must not be asked for a service of this very machine.
    around = [os.environ[n] for n in ("no_grpc_proxy", "no_proxy") if os.environ.get(n)][:1]
    os.environ["no_grpc_proxy"] = ",".join([*around, "127.0.0.1"])  # noqa: SIM112  (gRPC reads this case)
    jax.config.update("jax_check_proxy_envs", False)
    attempts = 3  # another program may take the free port before jax does
    for attempt in range(attempts):
        address = f"127.0.0.1:{_free_port()}"
        try:
            jax.distributed.initialize(
                coordinator_address=address,
                coordinator_bind_address=address,
                num_processes=1,
                process_id=0,
                cluster_detection_method="deactivate",
                heartbeat_timeout_seconds=_HEARTBEAT_ALONE_S,
                shutdown_timeout_seconds=shutdown_timeout_s,
            )
            return
        except RuntimeError as error:
            jax.distributed.shutdown()
            if attempt + 1 == attempts or "must be called before" in str(error):
                raise
            _log.info("port of %s was taken, trying another: %s", address, _first_line(error))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
