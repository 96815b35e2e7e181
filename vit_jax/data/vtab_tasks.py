"""The 19 tasks of VTAB-1k (arXiv 1910.04867): data sets, splits, sizes, labels, and how to get the data.

Splits are those of google-research/task_adaptation: 800 training and 200 validation examples, a test split that
is never touched in between. Versions are the newest of tensorflow-datasets 4.9.10; download sizes are those of
its lists of checksums. Images are squashed to a square, bilinear without antialiasing; nothing is ever flipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from vit_jax.data import vtab_labels
from vit_jax.data.vtab_labels import Binned, Feature, Modulo, Rule

GROUPS = ("natural", "specialized", "structured")
TRAIN, VAL = 800, 200  # examples of every task


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
      name: of folders, results and `--task`.
      title: in tables.
      short: in narrow tables, at most six letters.
      group: one of GROUPS.
      builder: NAME[/CONFIG] of tensorflow-datasets; version: of it.
      t, v, e: split expressions: training, validation, test.
      sizes: examples of every split of the builder that those use.
      test_count: examples of `e`.
      num_classes: of the head, whatever labels are seen.
      rule: record -> class in 0 ... num_classes - 1.
      image: key of the encoded image in a record.
      times_255: pixels are stored as 0 and 1.
      class_names: of the classes where a rule makes them; else the names of the label feature.
      needs: packages that the builder imports while it prepares the data, besides TensorFlow.
      download_gib: of what is fetched to prepare it; by hand: about as much, by the publishers' pages.
      manual: what must be fetched by hand first.
    """

    name: str
    title: str
    short: str
    group: str
    builder: str
    version: str
    t: str
    v: str
    e: str
    sizes: Mapping[str, int]
    test_count: int
    num_classes: int
    rule: Rule = field(default_factory=lambda: Feature("label"))
    image: str = "image"
    times_255: bool = False
    class_names: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    download_gib: float = 0.0
    manual: str = ""

    @property
    def tv(self) -> str:
        """The 1000 examples of the final training."""
        return f"{self.t}+{self.v}"

    @property
    def tfds(self) -> str:
        """NAME[/CONFIG]:VERSION."""
        return f"{self.builder}:{self.version}"


_CLEVR = {"train": 70_000, "validation": 15_000}
_CLEVR_SPLITS = {"t": "train[:800]", "v": "train[63000:63200]", "e": "validation"}
_DSPRITES = {"train": 737_280}
_DSPRITES_SPLITS = {"t": "train[:800]", "v": "train[589824:590024]", "e": "train[663552:]"}
_NORB = {"train": 24_300, "test": 24_300}
_NORB_SPLITS = {"t": "train[:800]", "v": "test[:200]", "e": "test[50%:]"}
_ENDS = {"t": "train[:800]", "v": "validation[:200]", "e": "test"}

_ALL = (
    Task("caltech101", "Caltech101", "Cal", "natural", "caltech101", "3.0.2",
         "train[:800]", "train[2754:2954]", "test", {"train": 3_060, "test": 6_084}, 6_084, 102,
         download_gib=0.13),
    Task("cifar100", "CIFAR-100", "C100", "natural", "cifar100", "3.0.2",
         "train[:800]", "train[45000:45200]", "test", {"train": 50_000, "test": 10_000}, 10_000, 100,
         download_gib=0.16),
    Task("dtd", "DTD", "DTD", "natural", "dtd", "3.0.1", **_ENDS,
         sizes={"train": 1_880, "validation": 1_880, "test": 1_880}, test_count=1_880, num_classes=47,
         download_gib=0.58),
    Task("flowers102", "Flowers102", "Flo", "natural", "oxford_flowers102", "2.1.1", **_ENDS,
         sizes={"train": 1_020, "validation": 1_020, "test": 6_149}, test_count=6_149, num_classes=102,
         needs=("scipy",), download_gib=0.32),
    Task("pets", "Pets", "Pet", "natural", "oxford_iiit_pet", "4.0.0",
         "train[:800]", "train[2944:3144]", "test", {"train": 3_680, "test": 3_669}, 3_669, 37,
         download_gib=0.76),
    Task("sun397", "Sun397", "Sun", "natural", "sun397/tfds", "4.0.0", **_ENDS,
         sizes={"train": 76_128, "validation": 10_875, "test": 21_750}, test_count=21_750, num_classes=397,
         needs=("cv2",), download_gib=36.4),
    Task("svhn", "SVHN", "SVHN", "natural", "svhn_cropped", "3.1.0",
         "train[:800]", "train[65931:66131]", "test", {"train": 73_257, "test": 26_032}, 26_032, 10,
         rule=Modulo("label", 10), needs=("scipy",), download_gib=1.47),
    Task("patch_camelyon", "Patch Camelyon", "Cam", "specialized", "patch_camelyon", "2.0.0", **_ENDS,
         sizes={"train": 262_144, "validation": 32_768, "test": 32_768}, test_count=32_768, num_classes=2,
         needs=("h5py",), download_gib=7.48),
    Task("eurosat", "EuroSAT", "Eur", "specialized", "eurosat/rgb", "2.0.0",
         "train[:800]", "train[16200:16400]", "train[21600:]", {"train": 27_000}, 5_400, 10,
         download_gib=0.09),
    Task("resisc45", "Resisc45", "Res", "specialized", "resisc45", "3.0.0",
         "train[:800]", "train[18900:19100]", "train[25200:]", {"train": 31_500}, 6_300, 45,
         download_gib=0.4, manual="unpack NWPU-RESISC45.rar into the manual folder"),
    Task("retinopathy", "Retinopathy", "Ret", "specialized",
         "diabetic_retinopathy_detection/btgraham-300", "3.0.0", **_ENDS,
         sizes={"train": 35_126, "validation": 10_906, "test": 42_670}, test_count=42_670, num_classes=5,
         needs=("cv2",), download_gib=82.0,
         manual="put the archives of Kaggle's diabetic-retinopathy-detection into the manual folder"),
    Task("clevr_count", "Clevr-Count", "CCnt", "structured", "clevr", "3.1.0", **_CLEVR_SPLITS,
         sizes=_CLEVR, test_count=15_000, num_classes=8, rule=vtab_labels.clevr_count,
         class_names=tuple(f"{n} objects" for n in range(3, 11)), download_gib=17.7),
    Task("clevr_distance", "Clevr-Distance", "CDis", "structured", "clevr", "3.1.0", **_CLEVR_SPLITS,
         sizes=_CLEVR, test_count=15_000, num_classes=6, rule=vtab_labels.clevr_distance,
         class_names=("0 to 8", "8 to 8.5", "8.5 to 9", "9 to 9.5", "9.5 to 10", "10 to 100"), download_gib=17.7),
    Task("dmlab", "DMLab", "DML", "structured", "dmlab", "2.0.1", **_ENDS,
         sizes={"train": 65_550, "validation": 22_628, "test": 22_735}, test_count=22_735, num_classes=6,
         download_gib=2.81),
    Task("dsprites_location", "dSprites-Location", "dLoc", "structured", "dsprites", "2.0.0",
         **_DSPRITES_SPLITS, sizes=_DSPRITES, test_count=73_728, num_classes=16,
         rule=Binned("label_x_position", 2), times_255=True,
         class_names=tuple(f"x {i} of 16" for i in range(16)), needs=("h5py",), download_gib=0.03),
    Task("dsprites_orientation", "dSprites-Orientation", "dOri", "structured", "dsprites", "2.0.0",
         **_DSPRITES_SPLITS, sizes=_DSPRITES, test_count=73_728, num_classes=16,
         rule=Binned("label_orientation", 2.5), times_255=True,
         class_names=tuple(f"angle {i} of 16" for i in range(16)), needs=("h5py",), download_gib=0.03),
    Task("kitti", "KITTI-Distance", "KIT", "structured", "kitti", "3.3.0", **_ENDS,
         sizes={"train": 6_347, "validation": 423, "test": 711}, test_count=711, num_classes=4,
         rule=vtab_labels.kitti_distance,
         class_names=("to 8 m", "8 to 20 m", "20 to 999 m", "no vehicle"),
         needs=("cv2",), download_gib=11.7),
    Task("smallnorb_azimuth", "sNORB-Azimuth", "Azi", "structured", "smallnorb", "2.0.0", **_NORB_SPLITS,
         sizes=_NORB, test_count=12_150, num_classes=18, rule=Feature("label_azimuth"),
         class_names=tuple(f"azimuth {20 * i}°" for i in range(18)), needs=("scipy",), download_gib=0.24),
    Task("smallnorb_elevation", "sNORB-Elevation", "Ele", "structured", "smallnorb", "2.0.0",
         **_NORB_SPLITS, sizes=_NORB, test_count=12_150, num_classes=9, rule=Feature("label_elevation"),
         class_names=tuple(f"elevation {30 + 5 * i}°" for i in range(9)), needs=("scipy",),
         download_gib=0.24),
)  # fmt: skip

# By name, in the order of the published tables.
TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _ALL})
