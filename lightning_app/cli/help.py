"""What ``--help`` says first: working examples, and the handful of options that matter. Imports nothing heavy."""

from lightning_app.common.arguments import as_called

OVERVIEW = """\
SkipScope: why do skip (identity) connections make networks train and generalise better? Measured, not argued.

usage: python main.py COMMAND [options]

examples:
  python main.py fit --config configs/quickstart.yaml                    plain and residual nets, no download: minutes
  python main.py fit --config configs/pair20.yaml --data.root ~/data     the same on CIFAR-10, depth 20
  python main.py report runs/digits/quickstart                           everything that was measured, as one HTML page
  python main.py reproduce --list                                        the papers' figures and tables, and what is tested

commands:
  fit        train, and measure after every epoch             fit --config configs/res20.yaml
  validate   risk and error of a checkpoint                   validate --config configs/res20.yaml --ckpt_path last
  test       the same on the test set alone                   test --config configs/res20.yaml --ckpt_path last
  measure    all measures of any net, without training        measure --ckpt_path runs/cifar10/res20/checkpoints/last.ckpt
  transfer   a residual net as the equivalent plain net       transfer IN.ckpt OUT.ckpt (--inverse: plain to residual)
  extract    one net of a bank as a checkpoint                extract IN.ckpt OUT.ckpt --member residual-seed03
  reproduce  a paper's table or figure, and our numbers       reproduce yu-tomasi/table-1 (--list: all of them)
  verify     check the committed verdicts, without training   verify yu-tomasi/table-3
  report     run folders -> one HTML page                     report runs/cifar10/res20 runs/cifar10/pln20
  board      the same page, live while runs train             board runs/
  compare    is A better than B, or is it noise?              compare runs/cifar10/res20 runs/cifar10/pln20

COMMAND -h has examples and the options that matter; COMMAND --help lists every option.
Any option can be given on the command line:  fit --config configs/res20.yaml --trainer.max_epochs 5 --data.root ~/data
--json prints the results as JSON (fit, validate, test, measure, reproduce, verify, compare); everything else goes to stderr
Later settings override earlier ones: configs/base.yaml, then each --config in order, then the command line.
"""

DATA = """\
  --config FILE               settings on top of configs/base.yaml (see configs/); if several, later ones override earlier ones
  --print_config              print the whole configuration that would be used, and stop
  --data CLASS                CIFAR10 (default), CIFAR100, Digits, WhitenedMNIST, ...; --data.help CLASS: its options
  --data.root DIR             where the data are, or are downloaded to (data)
  --data.batch_size N         samples per step
"""
NET = """\
  --model.net CLASS           the network: SimplifiedNet, CifarResNet, PreactResNet, or package.module.Class
  --model.net.depth N         an argument of the network; --model.net.help CLASS lists all
  --model.seeds SEEDS         3 (0, 1 and 2), 0-6, or 7-7 for one; each seed has a net of its own
"""
MACHINE = """\
  --trainer.accelerator gpu   or cpu; auto by default
  --trainer.precision 64-true arithmetic; 32-true by default
"""
JSON = """\
  --json                      print the results as JSON; everything else goes to stderr
"""
CHECKPOINT = """\
  --ckpt_path FILE            the checkpoint; `last`: last.ckpt of the newest run in runs/GROUP/NAME
"""

BRIEF = {
    "fit": (
        "Train, and measure after every epoch. The run's folder is runs/<group>/<name>; its report is written at the end.",
        """\
  python main.py fit --config configs/quickstart.yaml                               six nets, no download
  python main.py fit --config configs/pair20.yaml --model.seeds 3 --trainer.max_epochs 5
  python main.py fit --config configs/res20.yaml --model.net.depth 32 --run.name res32
  python main.py fit --config configs/res20.yaml --ckpt_path last                   resume where it stopped
""",
        DATA
        + NET
        + """\
  --model.optimizer.lr X      learning rate; --model.optimizer CLASS uses another optimizer
  --model.weight_decay X      lambda of the penalty lambda/2 |w|^2
  --trainer.max_epochs N      passes over the training data
"""
        + MACHINE
        + """\
  --trainer.callbacks+=CLASS  measure more: InterlayerCushion, NoiseStability, LossSurface, TwinDivergence,
                              DistanceFromStart
  --run.group G --run.name N  the run's folder: runs/G/N
  --ckpt_path last            resume the newest run of this group and name; or FILE
  --save_checkpoint.every_n_steps N   save within epochs too: a kill then costs at most N steps
  --until "test/error: better|equivalent within 0.002" --max-seeds 26   train more seeds until `compare` has a verdict
  --strict                    stop if a measure or logger fails, instead of warning and going on
""",
    ),
    "validate": (
        "Risk and error of a checkpoint on all splits that the configuration evaluates. Nothing is written.",
        """\
  python main.py validate --config configs/res20.yaml --ckpt_path last
  python main.py validate --ckpt_path runs/cifar10/res20/checkpoints/last.ckpt      with the net and data of its run
""",
        DATA + NET + CHECKPOINT + MACHINE,
    ),
    "test": (
        "Risk and error of a checkpoint on the test set alone. Nothing is written.",
        """\
  python main.py test --config configs/res20.yaml --ckpt_path last
  python main.py test --ckpt_path runs/cifar10/res20/checkpoints/last.ckpt          with the net and data of its run
  python main.py test --config configs/pln20.yaml --ckpt_path plain.ckpt            written by `transfer`
""",
        DATA + NET + CHECKPOINT + MACHINE,
    ),
    "measure": (
        "Run all measures on any network, without training: a table, arrays and a report.",
        """\
  python main.py measure --ckpt_path runs/cifar10/res20/checkpoints/last.ckpt       a net that fit has trained
  python main.py measure --model.net SimplifiedNet --model.net.depth 20 --data Digits
  python main.py measure --model.net torchvision.models.resnet18 --model.net.num_classes 10 --weights resnet18.pth
  python main.py measure --model.net torchvision.models.resnet18 --model.net.num_classes 3 --data ImageFolder --data.root photos
""",
        DATA
        + NET
        + """\
  --ckpt_path FILE            a checkpoint of `fit`; network, data and options of measures are those of its run
  --weights FILE              weights of the net: a state dict (.pth, .pt) or .safetensors
  --out DIR                   a new folder for the results; runs/measured/... by default
"""
        + MACHINE,
    ),
}


def overview() -> str:
    """What ``--help`` says without a command."""
    return as_called(OVERVIEW)


def brief(command: str) -> str:
    """What ``COMMAND -h`` says of a command that is configured: usage, examples, the options that matter."""
    what, examples, options = BRIEF[command]
    usage = f"usage: python main.py {command} [--config FILE] [--OPTION VALUE ...]"
    return as_called(
        f"{usage}\n\n{what}\n\nexamples:\n{examples}\nthe options that matter ({command} --help lists all):\n{options}{JSON}"
    )
