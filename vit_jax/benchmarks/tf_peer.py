"""The same images through tf.data in big_vision's order, for `bench input`, where TensorFlow is installed."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence


def missing() -> str | None:
    """Why tf.data can't be timed, None if it can."""
    return "tensorflow not installed" if importlib.util.find_spec("tensorflow") is None else None


def tf_call(files: Sequence[bytes], *, size: int, threads: int, batch: int) -> Callable[[], None]:
    """A call that takes JPEG files through decode + Inception crop, resize to `size` and flip, in batches.

    Cropping and decoding are fused (`decode_and_crop_jpeg`), bilinear without antialias, as in big_vision.
    """
    tf = importlib.import_module("tensorflow")
    tf.config.set_visible_devices([], "GPU")

    def preprocess(data: "tf.Tensor") -> "tf.Tensor":
        shape = tf.io.extract_jpeg_shape(data)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros([0, 0, 4], tf.float32),
            area_range=(0.05, 1.0),
            min_object_covered=0,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.cast(tf.image.resize(image, (size, size), "bilinear"), tf.uint8)
        return tf.image.random_flip_left_right(image)

    dataset = tf.data.Dataset.from_tensor_slices(list(files)).map(preprocess, num_parallel_calls=threads)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    dataset = dataset.batch(batch).with_options(options)

    def call() -> None:
        for _ in dataset.as_numpy_iterator():
            pass

    return call
