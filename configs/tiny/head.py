"""Class token, mean or attention pooling: configs/ablations/head.py on two CPU cores, with any small folder.

Not a paper row; the question of ViT (arXiv 2010.11929), appendix D.3: is the mean of the patches as good as a class
token, with a learning rate of its own? Model and settings as in tiny/posemb.py. The argument is a folder and
KEY=VALUE pairs:

    folder    with train/CLASS/ and validation/CLASS/ images, "tiny-imagenet" by default
    pool      tok (default), gap, map
    lr        peak learning rate, 2e-3 by default for all three: find each one's own
    steps     1500 by default

    python -m vit_jax.train --config=configs/tiny/head.py:FOLDER,pool=gap,lr=1e-3 --workdir=runs/gap

Logged: eval/val/accuracy, and at the end 5-shot accuracy of the frozen features. Hardware: two CPU cores.
"""

from ml_collections import ConfigDict

from vit_jax.config import load, one_of, parse_argument
from vit_jax.errors import UsageError

_DEFAULTS = {"folder": "tiny-imagenet", "pool": "tok", "lr": "2e-3", "steps": "1500"}


def get_config(arg: str = "") -> ConfigDict:
    """arg: FOLDER,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="folder")
    config = load(f"tiny/posemb:{values['folder']},steps={values['steps']}")
    try:
        config.optim.lr = float(values["lr"])
    except ValueError:
        raise UsageError(f"config argument lr is {values['lr']!r}", "give a number") from None
    config.model.pool = one_of(values["pool"], ("tok", "gap", "map"), "config argument pool")
    return config
