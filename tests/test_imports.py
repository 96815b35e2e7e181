"""The direction of imports, and that importing the package is light."""

import ast
import subprocess
import sys
from pathlib import Path

import vit_jax

PACKAGE = Path(vit_jax.__file__).parent
REPO = PACKAGE.parent

# Level of each module: it may import project modules of a lower level only.
LEVELS = [
    {"errors", "paths", "peers", "launch"},
    {"files"},
    {"models", "config", "losses", "schedules", "durations", "param_groups", "mixup", "sharding", "digest",
     "data", "records", "timing", "distributed", "workdir", "profile", "manifest", "views"},
    {"adafactor", "gathering", "step", "checkpoint_reader", "writers", "cli", "flops", "formats", "export",
     "figures", "preparing", "early_stop"},
    {"optim", "evaluators", "checkpoint", "model_config", "metrics", "inspection", "tasks"},
    {"job", "runs"},
    {"planning"},
    {"evaluation", "pretrained", "benchmarks"},
    {"loop", "start", "trained"},
    {"predictor", "sweep", "summary", "report"},
    {"vtab1k", "studies"},
    {"train", "evaluate", "predict", "convert", "bench", "plan", "visualize", "prepare"},
    {"vtab", "study"},
]  # fmt: skip


def level(module):
    found = [i for i, names in enumerate(LEVELS) if module in names]
    assert found, f"vit_jax.{module} has no level in this test: add it where it belongs"
    return found[0]


def imports_of(path):
    """Project modules and other top-level packages that a file imports, at any depth of nesting."""
    ours, others = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{a.name}" for a in node.names]
        else:
            assert not isinstance(node, ast.ImportFrom), f"{path}: relative import"
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] != "vit_jax":
                others.add(parts[0])
            elif len(parts) > 1:
                ours.add(parts[1])
    return ours, others


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] not in ("__init__", "configs", "launch"):
            yield parts[0], path


def test_nothing_imports_upward():
    for module, path in modules():
        for other in imports_of(path)[0] - {module}:
            assert level(other) < level(module), (
                f"{path.relative_to(REPO)} imports vit_jax.{other}, which isn't below it"
            )


def test_models_know_only_jax_and_data_knows_no_jax():
    for module, path in modules():
        ours, others = imports_of(path)
        if module == "models":
            assert ours <= {"models", "errors"}, path
            foreign = others - set(sys.stdlib_module_names)
            assert foreign <= {"jax", "flax", "numpy"}, f"{path}: {foreign}"
        if module == "data" and path.stem not in ("pipeline", "prefetch", "dataset"):
            assert "jax" not in others, path
        assert not others & {"tensorflow", "torch", "clu"}, path


def test_configs_import_only_ml_collections_and_the_loader():
    for path in (REPO / "configs").rglob("*.py"):
        ours, others = imports_of(path)
        assert ours <= {"config", "errors"} and others - set(sys.stdlib_module_names) <= {"ml_collections"}, (
            path
        )


def test_launchers_need_the_standard_library_only():
    for path in (REPO / "launch").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [] if node.level else [node.module]
            else:
                continue
            assert {n.split(".")[0] for n in names} <= set(sys.stdlib_module_names), f"{path}: {names}"


def test_importing_everything_touches_no_backend_and_no_tensorflow():
    names = [".".join(["vit_jax", *p.relative_to(PACKAGE).with_suffix("").parts]) for _, p in modules()]
    names = [n.removesuffix(".__init__") for n in names]
    code = (
        f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, xla_bridge._backends\n"
        "assert 'tensorflow' not in sys.modules and 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_import_of_the_package_alone_loads_no_jax():
    code = "import vit_jax, sys; assert 'jax' not in sys.modules; assert 'B/16' in vit_jax.list_models('B/*')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_files_stay_short():
    for _, path in modules():
        lines = len(path.read_text().splitlines())
        assert lines <= 400, f"{path.relative_to(REPO)} has {lines} lines: split it by idea"


def test_commands_load_no_matplotlib_before_they_draw():
    code = (
        "import importlib, sys\n"
        f"for n in {['train', 'evaluate', 'predict', 'visualize']!r}: importlib.import_module('vit_jax.' + n)\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
