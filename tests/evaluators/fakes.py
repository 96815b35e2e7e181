"""A source whose examples show their own number, and a model that looks their outputs up by it."""

from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np

from tests.data.fakes import FakePreprocess
from vit_jax import sharding, step
from vit_jax.data import pipeline, prefetch
from vit_jax.data.decode import BadImage
from vit_jax.data.source import Example, Source


class NumberedSource(Source):
    """Example i is a 4x4 image of value i (up to 255), with a name and a label of its own."""

    def __init__(self, labels, classes, names=None, bad=()):
        self.spec, self.split, self.classes = "fake", "test", tuple(classes)
        self._labels, self._names, self._bad = np.asarray(labels), names, bad

    def __len__(self):
        return len(self._labels)

    def name(self, index):
        return self._names[index] if self._names else f"image {index}"

    def __getitem__(self, index):
        if index in self._bad:
            raise BadImage(self.name(index), "can't be read")
        label = self._labels[index]
        return Example(
            np.full((4, 4, 3), index, np.uint8), int(label) if label.ndim == 0 else label, self.name(index)
        )

    def memory_bytes(self):
        return 0

    def labels(self):
        return self._labels


class Lookup:
    """A model whose outputs for image i are row i of its parameter `table`."""

    num_classes = 1

    def apply(self, variables, images, *, train):
        rows = variables["params"]["table"][images[:, 0, 0, 0].astype(jnp.int32)]
        return rows, {"pre_logits": rows}


class Scale:
    mean, std = (0.0,) * 3, (1.0,) * 3


def batches_of(source, mesh, batch, num_classes, on_bad_image="error"):
    """A function that gives passes over the source in batches on the mesh."""
    placed = sharding.batch_sharding(mesh)

    def batches():
        reading = pipeline.Reading(
            num_threads=2, prefetch_buffer=16, num_workers=0, on_bad_image=on_bad_image
        )
        host = pipeline.eval_batches(
            source, FakePreprocess(random=False), reading, global_batch=batch, num_classes=num_classes,
            local_rows=prefetch.local_rows(placed, batch),
        )  # fmt: skip
        with closing(prefetch.device_prefetch(host, placed, global_batch=batch, depth=2)) as on_devices:
            yield from on_devices

    return batches


def lookup_step(mesh, representation="logits"):
    def function(params, batch):
        return step.features_step(params, batch, model=Lookup(), scale=Scale, representation=representation)

    return jax.jit(function, out_shardings=sharding.replicated(mesh))


def state_of(table, mesh):
    params = {"table": jax.device_put(np.asarray(table, np.float32), sharding.replicated(mesh))}
    return step.TrainState(None, params, None, None, None)
