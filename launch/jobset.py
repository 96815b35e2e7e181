"""The JobSet of a job on GKE, and the Secret that goes with it: plain dicts, as kubectl takes them in JSON."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .accelerators import GpuNode, Slice
from .command import RESTART_CODES, is_secret

_PORT = 6002
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@dataclass(frozen=True)
class Spec:
    """A job: what, on which machines, and how the cluster treats it. count: slices, or machines with GPUs."""

    name: str
    command: tuple[str, ...]
    image: str
    machine: Slice | GpuNode
    count: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    queue: str = ""
    priority: str = ""
    max_restarts: int = 50
    grace_seconds: int = 300


def shell_line(command: Sequence[str]) -> str:
    """What the container's shell becomes: `exec`, so that SIGTERM reaches the program, which is process 1 then."""
    return "exec " + shlex.join(command)


def literal(text: str) -> str:
    """Text that Kubernetes leaves alone: it replaces $(NAME) in commands and values, and $$ by $."""
    return text.replace("$", "$$")


def manifest(spec: Spec) -> dict[str, Any]:
    """The JobSet."""
    tpu = isinstance(spec.machine, Slice)
    pods = spec.machine.hosts if tpu else spec.count
    metadata: dict[str, Any] = {"name": spec.name}
    if spec.queue:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": spec.queue}
    if tpu:  # each slice is a node pool of its own
        metadata["annotations"] = {
            "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
        }
    job = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": "train", "operator": "NotIn", "values": list(RESTART_CODES),
                    },
                }
            ]
        },
        "template": {"spec": _pod(spec)},
    }  # fmt: skip
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "failurePolicy": {
                # A code that is no request for a restart fails its job by the pods' policy, and that ends the run.
                "rules": [
                    {
                        "name": "endOnError",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
                "maxRestarts": spec.max_restarts,
            },
            "replicatedJobs": [
                {
                    "name": "slice" if tpu else "node",
                    "replicas": spec.count if tpu else 1,
                    "template": {"spec": job},
                }
            ],
        },
    }


def _pod(spec: Spec) -> dict[str, Any]:
    machine = spec.machine
    if isinstance(machine, Slice):
        selector = {
            "cloud.google.com/gke-tpu-accelerator": machine.generation.gke,
            "cloud.google.com/gke-tpu-topology": machine.topology,
        }
        limits = {"google.com/tpu": machine.chips_per_host}
    else:
        selector = {"cloud.google.com/gke-accelerator": machine.label}
        limits = {"nvidia.com/gpu": machine.gpus}
    return {
        "restartPolicy": "Never",
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": spec.grace_seconds,
        **({"priorityClassName": spec.priority} if spec.priority else {}),
        "nodeSelector": selector,
        "containers": [
            {
                "name": "train",
                "image": spec.image,
                "command": ["bash", "-c", literal(shell_line(spec.command))],
                "env": _container_env(spec),
                "securityContext": {"privileged": True},
                "resources": {"limits": limits},
            }
        ],
    }


def _container_env(spec: Spec) -> list[dict[str, Any]]:
    """GKE itself tells the processes of TPU slices about each other; on GPUs they are told here."""
    env: list[dict[str, Any]] = []
    for name, value in spec.env.items():
        if is_secret(name):
            source = {"secretKeyRef": {"name": secret_name(spec.name), "key": name}}
            env.append({"name": name, "valueFrom": source})
        else:
            env.append({"name": name, "value": literal(value)})
    if isinstance(spec.machine, GpuNode):
        env += [
            {"name": "JAX_COORDINATOR_ADDRESS", "value": f"{spec.name}-node-0-0.{spec.name}:{_PORT}"},
            {"name": "JAX_NUM_PROCESSES", "value": str(spec.count)},
            {"name": "JAX_PROCESS_ID", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        ]
    return env


def secret_name(name: str) -> str:
    """Of the Secret that goes with a job."""
    return f"{name}-env"


def secret(spec: Spec) -> dict[str, Any] | None:
    """The Secret with the job's secret variables; None when it has none."""
    values = {name: value for name, value in spec.env.items() if is_secret(name)}
    if not values:
        return None
    return {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret_name(spec.name)},
        "type": "Opaque", "stringData": values,
    }  # fmt: skip
