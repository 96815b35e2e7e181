"""Every configuration key, its default and what it means. Locked: an unknown key is an error.

The default of a key that is added means what happened before there was one: stored runs of older versions go on.

Other configs start from a fresh copy (`vit_jax.config.base_config()`) and set what their paper row says.

A duration is given in one of three units, by suffix: `_steps` (optimizer steps), `_epochs` (passes over
`data.train`) or `_examples`. None of the three set means "not used"; two set is an error. Giving one on the
command line clears the other two.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def _duration(config: ConfigDict, name: str) -> None:
    config[f"{name}_steps"] = placeholder(int)
    config[f"{name}_epochs"] = placeholder(float)
    config[f"{name}_examples"] = placeholder(int)


def get_config() -> ConfigDict:
    """The defaults, locked."""
    c = ConfigDict()

    c.seed = 0  # of everything: initial weights, data order, augmentation, dropout

    # ---- how long, how much at once
    _duration(c, "total")  # length of the run; one of them must be set
    _duration(c, "warmup")  # linear warm-up from 0 to the peak learning rate
    c.global_batch = 128  # examples per optimizer step, over all devices, hosts and accumulation steps
    c.accum_steps = 1  # micro-batches per optimizer step
    # Resuming with another total changes the schedule from this step on; refused unless true.
    c.allow_total_change = False

    # ---- what is learned
    c.task = "classify"  # classify | masked_patch: pretraining that looks at no label
    # Task masked_patch (ViT, appendix B.1.2): some patches of every image are hidden, and predicted from the rest.
    c.masked_patch = ConfigDict()
    c.masked_patch.share = (
        0.5  # of an image's patches that are corrupted and count in the loss; 0.15 was worse
    )
    c.masked_patch.mask_share = (
        0.8  # of the corrupted ones, drawn one by one: replaced by a learned mask token
    )
    c.masked_patch.swap_share = 0.1  # likewise: by another patch of the image; the rest is left as it is
    # mean_colour (3 bits a channel: 512 classes) | patch_4x4 (the colour of each of 16 cells, in classes too) |
    # pixels (all of them, normalised, by mean squared error)
    c.masked_patch.target = "mean_colour"

    # ---- model
    c.model = ConfigDict()
    # One of vit_jax.list_models(), or another patch size or width of those; "": as the weights of init are.
    c.model.name = "S/16"
    c.model.channels = placeholder(int)  # must be what data.preprocess_* gives, 3 unless it says otherwise
    c.model.image_size = placeholder(object)  # int or (height, width), must be what data.preprocess_* gives
    # What the model is made of. None: as the name says, or the init file where one is given, or else the model's
    # own default, which the comment names. A key that the named model has no field for is refused.
    c.model.patch_size = placeholder(int)  # pixels, or cells of the backbone's feature map; as the name says
    c.model.width = placeholder(int)  # as the name says, like the next three
    c.model.depth = placeholder(int)
    c.model.mlp_dim = placeholder(int)
    c.model.num_heads = placeholder(int)
    # ViT
    c.model.backbone = placeholder(tuple)  # units per ResNet stage, () for the root alone; as the name says
    c.model.backbone_width = placeholder(float)  # times 64 channels; as the name says
    c.model.patch_bias = placeholder(bool)  # bias of the patch embedding; True
    c.model.class_token = placeholder(bool)  # if the pooling reads it; True keeps one that gap leaves out
    c.model.num_registers = placeholder(int)  # learned tokens besides; 0
    c.model.posemb = placeholder(str)  # learn (1-D) | learn2d | relative | sincos2d | none; learn
    c.model.posemb_at = placeholder(str)  # stem | every (layer its own table) | shared; stem, relative: every
    c.model.posemb_cls = placeholder(bool)  # class token's own row in the 1-D table; False, hybrids True
    c.model.axial = placeholder(bool)  # attention along rows, then columns; as the name says
    c.model.pre_norm = placeholder(bool)  # LayerNorm before the blocks; False
    c.model.qkv_bias = placeholder(bool)  # True
    c.model.qk_norm = placeholder(bool)  # LayerNorm of queries and keys; False
    c.model.layer_scale = placeholder(float)  # initial scale of every branch, learned; 0: none
    c.model.swiglu = placeholder(bool)  # gated MLP; False
    c.model.gelu = placeholder(str)  # tanh (JAX, Google checkpoints) | erf (timm, Hugging Face); tanh
    c.model.ln_eps = placeholder(float)  # 1e-6
    c.model.pool = placeholder(str)  # tok (class token) | gap (mean) | map (attention) | tok_gap (both); tok
    c.model.norm_after_pool = placeholder(bool)  # instead of before it; False
    c.model.rep_size = placeholder(int)  # width of the tanh representation layer before the head; 0: none
    # ResNet
    c.model.depths = placeholder(tuple)  # units per stage; as the name says
    c.model.width_factor = placeholder(float)  # as the name says
    c.model.generation = placeholder(str)  # v1 (post-norm) | v2 (pre-activation, BiT's weights); v2
    # Mixer
    c.model.tokens_mlp_dim = placeholder(int)  # as the name says
    c.model.channels_mlp_dim = placeholder(int)  # as the name says
    # How it is trained and computed.
    c.model.dropout = 0.0  # ViT: after the position embedding and every dense layer but q, k, v
    c.model.attn_dropout = 0.0  # ViT: on the attention weights
    c.model.stoch_depth = 0.0  # ViT, Mixer: drop rate of the last block; linear in depth from 0
    c.model.head_bias_init = 0.0  # the paper's sigmoid pretraining uses -10
    c.model.scan = False  # ViT: one scanned block instead of `depth` unrolled ones; for L and larger
    c.model.remat = "none"  # ViT: none | dots | full: what the backward pass recomputes
    # Of the computation: float32 | bfloat16. Parameters are float32; gradients of those used in it are summed over
    # devices in it, those of norms and classifier in float32.
    c.model.dtype = "float32"
    c.model.softmax_dtype = "float32"  # ViT: of the attention softmax
    c.model.attention = "auto"  # ViT: auto | xla; cudnn and pallas are planned
    # A scan without remat keeps every layer's activations stacked: several times the memory of the unrolled
    # model. Refused above 100 M parameters unless true.
    c.allow_scan_without_remat = False
    c.num_classes = placeholder(int)  # None: as many as data.train has

    # ---- data: SOURCE[@SPLIT]; a bare split expression means the source of data.train
    # Sources: digits | folder:PATH | idx:PATH | cifar10:PATH | cifar100:PATH | arrayrecord:PATH |
    # tfds:NAME[/CONFIG][:VERSION] | vtab:TASK[:DIR]
    # Splits: train, train[:90%] (as stored), train{10%} (a random share, the same in every run; holds {3%}),
    # train{10%-stratified}, train{10%#1} (another draw), train{:90%} and train{90%:} (disjoint).
    c.data = ConfigDict()
    c.data.train = "digits@train"
    # (SOURCE, weight) pairs to train on together, with data.train='': (("folder:a@train", 0.7), ("folder:b", 0.3)).
    # Each source has its share of the draws; classes merge by name. An epoch: as many draws as examples in all.
    c.data.mixture = ()
    # Each image so many times in a batch, augmented differently; an epoch stays as long, for a part of the images.
    c.data.repeats = 1
    c.data.val = ""  # evaluated as eval/val/...; "": none
    c.data.test = "digits@test"  # evaluated as eval/test/...; "": none
    # Images of data.train, for `plan`, which opens no data; train counts them itself, and warns of another number.
    c.data.train_examples = placeholder(int)
    c.data.preprocess_train = "decode"
    c.data.preprocess_eval = "decode"
    c.data.on_bad_image = "error"  # error: stop, naming it | skip: leave it out with a warning
    c.data.num_threads = placeholder(int)  # reader threads per process; None: one per core
    c.data.num_workers = 0  # reader processes per host on top; 0: threads only
    c.data.prefetch_examples = 512  # decoded examples held ahead, per process
    c.data.prefetch_batches = 2  # batches held on the devices ahead of the step
    c.log_example_ids = False  # also write examples.jsonl: the example ids of every step, in order

    # ---- loss and device-side augmentation
    c.loss = "softmax_xent"  # softmax_xent | sigmoid_xent (multi-label; summed over classes)
    c.label_smoothing = 0.0
    c.mixup_alpha = 0.0  # Beta(alpha, alpha), one lambda per step; 0: off
    c.cutmix_alpha = 0.0  # CutMix: likewise, one box per step; 0: off
    c.cutmix_prob = 0.5  # share of the steps that take CutMix, where both are on
    # Whom an example is mixed with: global: the one before it in the global batch | per_shard: the one before it
    # in its group of mixup_shard_examples. With global_batch / devices of them it is as in big_vision, and nothing
    # moves between devices; the result depends on neither the mesh nor accum_steps.
    c.mixup_partner = "global"
    c.mixup_shard_examples = placeholder(int)

    # ---- optimizer
    c.optim = ConfigDict()
    c.optim.name = "adam"  # adam (with decoupled decay: AdamW) | adafactor (of Scaling ViT) | sgd
    c.optim.lr = 1e-3  # peak
    c.optim.wd = 0.0
    c.optim.wd_mode = "lr_scaled"  # lr_scaled: decays by lr(t) wd | absolute: by wd lr(t) / peak
    c.optim.wd_mask = ".*/kernel$"  # regex of the parameter paths that decay
    # (regex, multiplier) pairs of parameters with another decay than wd; the first match counts, over wd_mask.
    c.optim.wd_mults = ()
    c.optim.clip_norm = placeholder(float)  # global norm of the mean gradient; None: no clipping
    c.optim.b1 = 0.9  # adam, adafactor
    c.optim.b2 = 0.999  # adam
    c.optim.eps = 1e-8  # adam
    c.optim.b2_cap = 0.999  # adafactor: its second moment decays by min(b2_cap, 1 - t^-0.8)
    c.optim.factor_min_dim = 32  # adafactor: factors parameters whose two longest axes are at least so long
    c.optim.momentum = 0.9  # sgd
    c.optim.momentum_dtype = "float32"  # of the first moment or sgd's buffer: float32 | bfloat16
    # A regex must match whole paths, such as encoder/block_0/mlp/fc1/kernel; one that matches none is refused.
    # Frozen: no gradient, no part in the norms, no decay, no optimizer state. All but the head: (?!head/).*
    c.optim.frozen = ""  # regex of the parameter paths that stay as they are; "": none
    # (regex, multiplier) pairs on the learning rate, the first match counts: "(('head/.*', 10.0),)". They act on
    # the decay too with wd_mode lr_scaled, not with absolute.
    c.optim.lr_mults = ()
    # Multiplier layer_decay ** (L + 1 - layer) on top: block i of L is layer i + 1, what comes before is layer 0,
    # norm, pooling and head have multiplier 1. None: off; usual when fine-tuning: 0.65 to 0.9.
    c.optim.layer_decay = placeholder(float)
    # Polyak average of the parameters: ema += (1 - ema_decay) (params - ema) after every update, from the
    # starting parameters on. None: off; the paper fine-tunes on ImageNet with 0.9999. Evaluated besides the
    # parameters, as eval/<name>_ema/...; saved with them.
    c.ema_decay = placeholder(float)
    c.schedule = "cosine"  # cosine | linear | polynomial | rsqrt | stair | constant, after the warm-up
    c.schedule_end_lr = 0.0  # where linear and polynomial end (the paper: 1e-5)
    c.schedule_power = 2.0  # of polynomial: (1 - progress)^power
    c.schedule_timescale_steps = 10_000  # of rsqrt
    c.schedule_stairs = (0.3, 0.6, 0.9)  # of stair: where in the run, 0 to 1, the rate is multiplied
    c.schedule_stair_factor = 0.1  # by this, each time
    _duration(c, "cooldown")  # final linear ramp to 0, on top of any schedule
    c.nonfinite_limit = 10  # stop after so many non-finite updates in a row; each is skipped and counted

    # ---- devices
    c.mesh = ConfigDict()
    c.mesh.replica = -1  # pure data parallel; -1: all devices that are left
    c.mesh.fsdp = 1  # data parallel with sharded parameters and optimizer state
    c.mesh.tensor = 1  # tensor parallel: heads and MLP width
    c.fsdp_min_size = 2**14  # elements (per layer) below which a tensor stays replicated
    c.distributed = ConfigDict()
    c.distributed.heartbeat_seconds = 60  # a peer silent for so long ends the run
    c.distributed.init_timeout_seconds = 1800  # how long to wait for all processes at start

    # ---- where to start; the run's own workdir always comes first
    c.resume = ""  # another run's directory (RUN or RUN@STEP): parameters, optimizer state and step
    # Parameters only: published weights of any supported layout (a file, a folder, hf://owner/repo, gs://...), or
    # a run directory (RUN, RUN@STEP, RUN@best). Other classes get a head of zeros, another image size
    # a resized position table; anything else that differs is refused.
    c.init = ""
    c.init_subtree = ""  # params | ema of a run or training state, or a prefix in a file; "": the parameters
    c.init_head = "auto"  # auto: kept for the same class names alone, else zeros | keep: for as many classes
    # zoom | bicubic | bicubic_antialias | bilinear; "": as the weights' source does.
    c.init_posemb_resize = ""

    # ---- train --sweep: a run for each of these in WORKDIR/sweep, then one with the best on all of data.train
    c.sweep = ConfigDict()
    c.sweep.lr = ()  # peak learning rates; (): optim.lr alone
    c.sweep.steps = ()  # total steps; (): the run's own length alone
    c.sweep.train = ""  # split of the source of data.train that they train on
    c.sweep.dev = ""  # split that they are compared on, by accuracy

    # ---- vit_jax.vtab; its grid is that of sweep, its splits are the tasks' own
    c.vtab = ConfigDict()
    c.vtab.method = "finetune"  # finetune | linear (a probe of frozen features, linear.l2 chosen on V)
    c.vtab.seeds = 3  # runs of the final training: seed, seed + 1, ...; the median counts
    c.vtab.keep_checkpoints = False  # of runs that are through
    c.vtab.keep_features = False  # of tasks that are through

    # ---- checkpoints
    c.checkpoint = ConfigDict()
    _duration(c.checkpoint, "every")
    c.checkpoint.every_minutes = placeholder(float)  # also after so many minutes
    c.checkpoint.keep = 3  # the newest so many
    c.checkpoint.keep_every_steps = placeholder(int)  # and for good every so many steps
    c.checkpoint.best_metric = ""  # e.g. eval/val/accuracy: the best one is kept apart, in best/

    # ---- evaluation and logs
    c.eval = ConfigDict()
    _duration(c.eval, "every")  # besides the final one
    c.eval.global_batch = placeholder(int)  # None: global_batch
    # For label vectors, precision at 1 and mean average precision too; keeps all logits of the split in memory.
    c.eval.average_precision = True

    # ---- early stopping: the run ends (exit code 0) when the metric got no better in so many evaluations
    c.early_stop = ConfigDict()
    c.early_stop.metric = ""  # eval/val/accuracy or eval/val/loss, of test, or of val_ema; "": off
    c.early_stop.patience = 5  # evaluations, one every eval.every_*
    c.early_stop.mode = ""  # max | min; "": min for a loss, max for others
    # Unless checkpoint.best_metric names another, best/ is kept by this metric: evaluate --checkpoint=RUN@best.

    # ---- frozen features: evaluated as eval/<name>/<method>/... whenever data.test is, or at an interval of their
    # own, on data sets with classes of their own
    c.features = ConfigDict()
    # (name, SOURCE, train split, test split) each: (("pets", "tfds:oxford_iiit_pet", "train", "test"),). An empty
    # SOURCE means data.train and data.test, of the checkpoint's own run with `evaluate`.
    c.features.data = ()
    c.features.methods = ("fewshot",)  # of fewshot, linear, knn; knobs below
    # pre_logits: the classifier's input | logits | cls | patches (mean of the patch tokens) | cls_patches (both)
    c.features.representation = "pre_logits"
    c.features.cache = ""  # folder where `evaluate` keeps features; "": nowhere
    _duration(c.features, "every")  # None: as eval.every
    # Closed-form least squares on a few images per class; accuracy, and its standard deviation over the draws.
    c.fewshot = ConfigDict()
    c.fewshot.shots = (1, 5, 10, 25)  # images per class
    c.fewshot.seeds = 3  # draws 0, 1, ... of the training images
    c.fewshot.l2 = 2.0**10  # big_vision's, for all data sets
    c.fewshot.l2_sweep = ()  # also with the best of these, chosen by other draws on images of train; (): not
    # Logistic regression on all of train: mean cross-entropy + l2 / 2 |W|^2 on standardised features.
    c.linear = ConfigDict()
    c.linear.solver = "lbfgs"  # lbfgs | sgd (momentum 0.9, cosine) for sets too large for that
    c.linear.l2 = (1e-4, 1e-3, 1e-2, 1e-1)  # of several, the best on a tenth of train
    c.linear.max_steps = 1000  # lbfgs
    c.linear.lr = 0.1  # sgd, and the rest
    c.linear.epochs = 100
    c.linear.batch_size = 512
    # Votes of the nearest training images by cosine similarity s, weighted by exp(s / temperature).
    c.knn = ConfigDict()
    c.knn.k = (10, 20)
    c.knn.temperature = 0.07

    # ---- ImageNet's other test sets, for classifiers of its 1000 classes: eval/real/..., eval/v2/... "": off
    c.imagenet = ConfigDict()
    c.imagenet.real = ""  # SOURCE of the validation images, whose file names carry their number
    c.imagenet.real_labels = "real.json"  # ReaL's label sets
    c.imagenet.v2 = ""  # SOURCE of ImageNet-V2, whose folders are class numbers
    c.imagenet.a = (
        ""  # SOURCE of ImageNet-A, folders of WordNet ids; those classes' logits alone are compared
    )
    c.imagenet.r = ""  # SOURCE of ImageNet-R, likewise
    c.imagenet.objectnet = ""  # SOURCE of ObjectNet
    c.imagenet.objectnet_classes = "objectnet.json"  # {folder: [classes by number or name, ...]}
    c.imagenet.classes = (
        ""  # file of WordNet ids, one a line, in the order of the logits; "": the run's classes
    )

    _duration(c, "log_every")
    c.log_every_steps = 50
    c.tensorboard = True
    c.profile = ConfigDict()
    c.profile.start_step = placeholder(int)  # None: no profile; else written to WORKDIR/profile
    c.profile.num_steps = 5
    c.watchdog_minutes = 30.0  # print all stacks when no step ends for so long
    c.compile_cache = ""  # folder of the persistent compilation cache; "": off

    return c.lock()
