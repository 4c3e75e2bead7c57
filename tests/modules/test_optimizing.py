"""Clipping, schedules and closures: a net of a bank is the net trained alone, and that is the loop one writes by hand."""

import copy
import math
import re
from functools import partial

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LambdaLR, LinearLR, OneCycleLR, StepLR

from lightning_app.common.errors import UserError
from lightning_app.modules.members import Arm
from lightning_app.modules.optimizing import lay_out, make_schedule, try_schedules
from tests.helpers import ROOT, arm, built, classifier, digits, fit, identical, same_weights, sgd, trainer

STEPS = 8  # of two epochs of the digits here
WARM_UP = {
    "scheduler": [partial(LinearLR, start_factor=0.25, total_iters=3), partial(CosineAnnealingLR, T_max=5)],
    "scheduler_milestones": [3],
    "scheduler_interval": "step",
}
ONE_CYCLE = {"scheduler": partial(OneCycleLR, max_lr=0.1, total_steps=STEPS), "scheduler_interval": "step"}
CLIPPED = {"gradient_clip_val": 0.1}
BY_VALUE = {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": "value"}
ALONE = {"seeds": [5], "channels_last": False}


class SAM(torch.optim.SGD):
    """Sharpness-aware minimisation (Foret et al. 2021, algorithm 1), as a user writes it."""

    def __init__(self, parameters, lr, rho=0.05):
        super().__init__(parameters, lr=lr, momentum=0.9)
        self.rho = rho

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        weights = [w for group in self.param_groups for w in group["params"]]
        norm = torch.linalg.vector_norm(torch.stack([w.grad.norm() for w in weights]))
        before = [w.clone() for w in weights]
        for w in weights:
            w.add_(w.grad, alpha=float(self.rho / norm))
        closure()
        for w, old in zip(weights, before):
            w.copy_(old)
        super().step()
        return loss


class Growing(torch.optim.Optimizer):
    """Gradient descent that counts in its group, as Prodigy and schedule-free optimizers do: steps of 1, 2, 3, ... times lr."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "k": 0})

    @torch.no_grad()
    def step(self, closure):
        torch.enable_grad()(closure)()
        for group in self.param_groups:
            group["k"] += 1
            for w in group["params"]:
                w.add_(w.grad, alpha=-group["lr"] * group["k"])


class Watch(pl.Callback):
    """Keeps the batches and learning rates of a run."""

    def __init__(self):
        self.batches, self.rates = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        images, labels = next(iter(batch.values()))
        self.batches.append((images.clone(), labels.clone()))
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def lbfgs(parameters):
    return torch.optim.LBFGS(parameters, lr=0.5, max_iter=3, history_size=2, line_search_fn="strong_wolfe")


def chained(optimizer):
    return ChainedScheduler([LinearLR(optimizer, 0.5, total_iters=4), CosineAnnealingLR(optimizer, 8)])


@pytest.fixture(scope="module")
def free():
    return fit(classifier(seeds=[0, 5]))


@pytest.mark.parametrize("options", [{}, CLIPPED, BY_VALUE, WARM_UP, ONE_CYCLE | CLIPPED])
def test_a_member_is_the_net_alone(options, free):
    bank = fit(classifier(seeds=[0, 5], **options))
    alone = fit(classifier({"residual": arm(True)}, seeds=[5], **options))
    among, other = (each.members[3] for each in (bank, free))
    assert among.name == "residual-seed05" and same_weights(among.net, alone.members[0].net)
    assert same_weights(among.net, other.net) == (not options)


def by_hand(net, batches, optimizer, clip=lambda parameters: None):
    """What one writes without this application; the penalty is torch's weight decay."""
    for images, labels in batches:

        def closure(images=images, labels=labels):
            optimizer.zero_grad()
            cost = F.cross_entropy(net(images), labels)
            cost.backward()
            clip(net.parameters())
            return cost

        optimizer.step(closure)
    return net


@pytest.mark.parametrize(
    ("options", "clip"),
    [
        (CLIPPED, partial(clip_grad_norm_, max_norm=0.1)),
        (BY_VALUE, partial(clip_grad_value_, clip_value=1e-3)),
    ],
)
def test_clipping_is_torchs_before_the_decay(options, clip):
    module = classifier({"net": arm(True)}, weight_decay=1e-2, **ALONE, **options)
    start = copy.deepcopy(module.members[0].net)
    fit(module, callbacks=[watch := Watch()])
    decayed = torch.optim.SGD(start.parameters(), 0.05, 0.9, weight_decay=1e-2)
    assert same_weights(module.members[0].net, by_hand(start, watch.batches, decayed, clip))


def test_clipping_counts_the_gradients_of_one_step_also_of_weights_that_the_optimizer_lacks():
    def make(weights):
        return torch.optim.SGD([*weights][-2:], 0.05)

    module = classifier({"net": arm(True)}, optimizer=make, weight_decay=0, **ALONE, **CLIPPED)
    start = copy.deepcopy(module.members[0].net)
    fit(module, callbacks=[watch := Watch()])
    some = make(start.parameters())
    some.zero_grad = start.zero_grad
    trained = by_hand(start, watch.batches, some, partial(clip_grad_norm_, max_norm=0.1))
    assert same_weights(module.members[0].net, trained)


@pytest.mark.parametrize("make", [lbfgs, partial(SAM, lr=0.05)])
def test_an_optimizer_with_a_closure_is_the_loop_by_hand(make):
    module = classifier({"net": arm(True)}, optimizer=make, weight_decay=0, **ALONE)
    start = copy.deepcopy(module.members[0].net)
    fit(module, callbacks=[watch := Watch()])
    assert len(watch.batches) == STEPS
    assert same_weights(module.members[0].net, by_hand(start, watch.batches, make(start.parameters())))


def test_what_a_closure_returns_is_the_cost_whose_gradient_it_left():
    """Of a line search both must be of one function; here the penalty is nearly all of it."""
    seen = []

    class Looking(torch.optim.SGD):
        def step(self, closure):
            seen.append(float(closure()))

    module = classifier({"net": arm(True)}, optimizer=partial(Looking, lr=0.1), weight_decay=100.0)
    fit(module, epochs=1, max_steps=1)
    penalty = module.penalties["net"].value()  # of weights that nobody moved
    assert penalty < seen[0] < penalty + 4


@pytest.mark.parametrize(
    "options",
    [
        WARM_UP | CLIPPED,
        ONE_CYCLE,
        {"optimizer": lbfgs, "arms": {"residual": arm(True)}, "channels_last": False},
        {"optimizer": partial(SAM, lr=0.05), "arms": {"residual": arm(True)}},
        {"arms": {"residual": arm(True)}, "scheduler": chained, "scheduler_interval": "step"},
        WARM_UP | {"optimizer": partial(Growing, lr=0.01)},
    ],
    ids=["warm-up", "one-cycle", "lbfgs", "sam", "chained", "growing"],
)
def test_a_resumed_run_is_the_one_that_went_on(tmp_path, options):
    """From within an epoch and from its end."""
    save = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    whole = fit(classifier(**options), enable_checkpointing=True, callbacks=[save])
    for step in (2, 4):
        resumed, run = classifier(**options), trainer(2, callbacks=[watch := Watch()])
        run.fit(resumed, datamodule=digits(), ckpt_path=tmp_path / f"step={step}.ckpt")
        assert len(watch.rates) == STEPS - step
        assert same_weights(whole.nets, resumed.nets)


class InDouble(torch.optim.Optimizer):
    """Gradient descent that adds up its steps in float64, where none is rounded away, and counts them in an integer."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure):
        torch.enable_grad()(closure)()
        for group in self.param_groups:
            for w in group["params"]:
                kept = self.state[w] or {"exact": w.double(), "count": torch.tensor(0)}
                kept["exact"] -= group["lr"] * w.grad.double()
                kept["count"] += 1
                self.state[w] = kept
                w.copy_(kept["exact"])


@pytest.mark.parametrize(
    ("make", "precision"),
    [(InDouble, "32-true"), (torch.optim.NAdam, "bf16-true"), (partial(torch.optim.ASGD, lambd=0), "bf16-true")],
    ids=["own", "nadam", "asgd"],
)
def test_what_an_optimizer_keeps_in_a_dtype_of_its_own_is_not_rounded_by_a_resume(tmp_path, make, precision):
    """torch casts it to the weight's."""

    def one(**options) -> pl.Trainer:
        return trainer(2, precision=precision, limit_val_batches=0, **options)

    options = {"optimizer": partial(make, lr=0.01), "arms": {"residual": arm(True)}}
    save = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    runs = one(enable_checkpointing=True, callbacks=[save]), one()
    nets = [classifier(**options) for _ in runs]
    for run, net, start in zip(runs, nets, (None, tmp_path / "step=4.ckpt")):
        run.fit(net, datamodule=digits(), ckpt_path=start)
    assert same_weights(*(net.nets for net in nets))
    assert identical(*(run.optimizers[0].state_dict()["state"] for run in runs))


def test_a_resume_that_trains_nothing_leaves_no_state_to_a_later_training(tmp_path):
    nadam = partial(torch.optim.NAdam, lr=0.01)
    nets = [classifier(optimizer=nadam, arms={"residual": arm(True)}) for _ in range(2)]
    runs = [trainer(1, precision="bf16-true", limit_val_batches=0) for _ in range(3)]
    runs[0].fit(nets[0], datamodule=digits())
    runs[0].save_checkpoint(tmp_path / "last.ckpt")
    runs[1].fit(nets[1], datamodule=digits(), ckpt_path=tmp_path / "last.ckpt")
    runs[2].fit(nets[1], datamodule=digits())
    assert runs[2].global_step == runs[0].global_step


def test_a_net_is_resumed_whose_checkpoints_name_weights_otherwise_than_it_does(tmp_path):
    """As with torch's wrapper that computes activations a second time."""

    def net() -> torch.nn.Module:
        hidden = torch.nn.Sequential(torch.nn.Linear(3072, 4), torch.nn.ReLU())
        return torch.nn.Sequential(torch.nn.Flatten(), checkpoint_wrapper(hidden), torch.nn.Linear(4, 10))

    nets = [classifier(arms={"net": Arm(net=net)}) for _ in range(2)]
    runs = [trainer(epochs, limit_val_batches=0) for epochs in (1, 2)]
    runs[0].fit(nets[0], datamodule=digits())
    runs[0].save_checkpoint(tmp_path / "last.ckpt")
    runs[1].fit(nets[1], datamodule=digits(), ckpt_path=tmp_path / "last.ckpt")
    assert runs[1].global_step == STEPS


def test_what_an_optimizer_keeps_of_no_weight_or_in_a_form_of_its_own_stays_as_it_is():
    weight = torch.nn.Parameter(torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    own = torch.nn.Parameter(torch.zeros(1, 2, 3, 4))  # of a class of its own, as quantised state has
    optimizer.state[weight] = {"own": own, "momentum": torch.zeros(1, 2, 3, 4), "step": torch.tensor(1.0)}
    optimizer.state["all"] = {"steps": torch.tensor(3)}
    lay_out(optimizer)
    kept = optimizer.state[weight]
    assert kept["own"] is own and kept["momentum"].stride() == weight.stride() != own.stride()
    assert optimizer.state["all"] == {"steps": torch.tensor(3)}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "make", [partial(torch.optim.SGD, lr=0.05, momentum=0.9), torch.optim.Adam], ids=["sgd", "adam"]
)
def test_a_run_that_is_resumed_in_another_memory_format_keeps_each_weights_momentum(tmp_path, make, fused):
    """As one that moves from a CPU to a GPU. A fused step would pair what lies at the same place in memory."""
    options = {"optimizer": partial(make, fused=fused), "arms": {"residual": arm(True)}}
    save = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    whole = fit(classifier(**options, channels_last=True), enable_checkpointing=True, callbacks=[save])
    resumed, run = classifier(**options, channels_last=False), trainer(2, callbacks=[watch := Watch()])
    run.fit(resumed, datamodule=digits(), ckpt_path=tmp_path / "step=4.ckpt")
    assert len(watch.rates) == STEPS - 4
    for ours, theirs in zip(resumed.nets.parameters(), whole.nets.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        assert all(kept.stride() == ours.stride() for kept in run.optimizers[0].state[ours].values() if kept.ndim)


@pytest.mark.parametrize(
    "changed",
    [
        {"optimizer": partial(torch.optim.SGD, lr=0.02, momentum=0.5)},
        WARM_UP | {"scheduler": [partial(LinearLR, start_factor=0.5, total_iters=3), WARM_UP["scheduler"][1]]},
    ],
    ids=["rate", "schedule"],
)
def test_a_resumed_run_has_the_rates_of_its_own_configuration(tmp_path, changed):
    """As if they had been so from the beginning: the checkpoint says how far they have come."""
    bank = WARM_UP | {"optimizer": partial(torch.optim.SGD, lr=0.05, momentum=0.9)}
    save = ModelCheckpoint(tmp_path, filename="there", every_n_train_steps=2, save_top_k=1)
    fit(classifier(**bank), enable_checkpointing=True, callbacks=[save], max_steps=2)
    fit(classifier(**bank | changed), callbacks=[whole := Watch()])
    run = trainer(2, callbacks=[resumed := Watch()])
    run.fit(classifier(**bank | changed), datamodule=digits(), ckpt_path=tmp_path / "there.ckpt")
    assert resumed.rates == whole.rates[2:]
    assert run.optimizers[0].param_groups[0]["momentum"] == (0.5 if "optimizer" in changed else 0.9)


def test_warm_up_and_cosine_have_the_rates_of_their_formulas():
    fit(classifier({"net": arm(True)}, **WARM_UP), callbacks=[watch := Watch()])
    warm = [0.05 * (0.25 + 0.75 * step / 3) for step in range(3)]
    cosine = [0.05 * (1 + math.cos(math.pi * step / 5)) / 2 for step in range(5)]
    assert watch.rates == pytest.approx(warm + cosine, rel=1e-6)


@pytest.mark.parametrize(("steps", "halvings"), [(2, 0), (4, 1), (6, 1), (8, 2)])
def test_a_schedule_by_epochs_does_not_step_where_training_ends_within_one(steps, halvings):
    run = trainer(2, max_steps=steps)
    run.fit(classifier({"net": arm(True)}, scheduler=partial(StepLR, step_size=1, gamma=0.5)), datamodule=digits())
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.05 / 2**halvings)


def test_one_cycle_peaks_after_a_third_of_the_steps_and_cycles_momentum():
    run = trainer(2, callbacks=[watch := Watch()])
    run.fit(classifier({"net": arm(True)}, **ONE_CYCLE), datamodule=digits())
    assert watch.rates[0] == pytest.approx(0.1 / 25) and 0.09 < max(watch.rates) == watch.rates[2] < 0.1
    assert run.optimizers[0].param_groups[0]["momentum"] > 0.93  # as at the start, and 0.85 at the peak


def old_sam(parameters):
    """The widespread form: it wants gradients before the step, and its closure for the second ones."""

    class Sam(torch.optim.SGD):
        def step(self, closure=None):
            norms = [w.grad.norm() for w in self.param_groups[0]["params"] if w.grad is not None]
            torch.stack(norms)

    return Sam(parameters, lr=0.1)


class Speedy(torch.optim.Optimizer):
    def __init__(self, parameters, speed=0.1):
        super().__init__(parameters, {"speed": speed})


class OfOneNorm(torch.optim.SGD):
    """Divides all gradients by the norm of all, as timm's Lamb does where it is large."""

    def step(self, closure):
        loss = closure()
        clip_grad_norm_([w for group in self.param_groups for w in group["params"]], 1e-3)
        super().step()
        return loss


class Idle(torch.optim.SGD):
    def step(self, closure=None):
        return None


def test_no_gradient_of_an_earlier_step_is_there_before_the_closure_is_called():
    before = []

    class Looking(torch.optim.SGD):
        def step(self, closure):
            before.append([w.grad for w in self.param_groups[0]["params"]])
            return super().step(closure)

    fit(classifier(optimizer=partial(Looking, lr=0.1)), epochs=1)
    assert len(before) > 1 and all(grad is None for grads in before for grad in grads)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimizer": lbfgs}, "LBFGS takes the gradients of all parameters as one vector.*one net at a time"),
        ({"optimizer": lbfgs, "arms": {"a": arm(True)}}, "set model.channels_last: false"),
        ({"optimizer": partial(SAM, lr=0.1)}, "SAM asks for gradients several times in a step.*one net at a time"),
        (
            {"optimizer": old_sam},
            "Sam.step.closure. must call its closure before anything else.*RuntimeError: stack expects",
        ),
        ({"optimizer": partial(Idle, lr=0.1)}, "Idle.step.closure. must call its closure before anything else"),
        ({"optimizer": partial(OfOneNorm, lr=0.1)}, "OfOneNorm computes a number of all weights.*one net at a time"),
        ({"optimizer": Speedy}, r"Speedy: expected an option `lr`.* got speed\. .*Name the learning rate `lr`"),
        ({"optimizer": Speedy} | WARM_UP, r"Speedy: expected an option `lr`"),
        ({"gradient_clip_val": 0.0}, "gradient_clip_val: expected a number above 0"),
        (
            WARM_UP | {"scheduler_milestones": None},
            r"expected 1 ascending number.s., got \[\]: model.scheduler has 2 scheduler.s. in a list",
        ),
        (ONE_CYCLE | {"scheduler_milestones": [1]}, r"expected 0 ascending number.* got \[1\]"),
        (
            {"scheduler": partial(OneCycleLR, max_lr=0.1, total_steps=2), "scheduler_interval": "step"},
            "OneCycleLR cannot continue",
        ),
        ({"scheduler": partial(StepLR, step_size=0)}, "StepLR cannot continue .*lengths .* to 1 or more"),
    ],
)
def test_what_cannot_be_is_an_error_message(wrong, message):
    with pytest.raises(UserError, match=message):
        fit(classifier(**wrong))


@pytest.mark.parametrize(
    "options",
    [
        {"scheduler": partial(CosineAnnealingLR, T_max=0)},
        WARM_UP | {"scheduler": [WARM_UP["scheduler"][0], partial(StepLR, step_size=0)]},
    ],
    ids=["alone", "second"],
)
def test_a_schedule_of_no_length_is_said_before_training(options):
    with pytest.raises(UserError, match=r"LR cannot continue .*model\.scheduler"):
        classifier(**options).configure_optimizers()


def test_to_try_an_optimizer_uses_up_nothing_of_its_arguments():
    class Noisy(torch.optim.SGD):
        def __init__(self, parameters, lr, generator, seen):
            super().__init__(parameters, lr)
            self.generator, self.seen = generator, seen

        def step(self, closure):
            self.seen.append(torch.rand((), generator=self.generator))
            return super().step(closure)

    generator, seen = torch.Generator().manual_seed(3), []
    before = generator.get_state()
    classifier(optimizer=partial(Noisy, lr=0.1, generator=generator, seen=seen)).configure_optimizers()
    assert generator.get_state().equal(before) and not seen


def test_to_try_a_schedule_changes_nothing():
    made = classifier(**WARM_UP).configure_optimizers()
    optimizer, scheduler = made["optimizer"], made["lr_scheduler"]["scheduler"]
    alone = make_schedule(
        WARM_UP["scheduler"],
        WARM_UP["scheduler_milestones"],
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=optimizer.defaults["lr"], momentum=0.9),
    )
    assert scheduler.last_epoch == 0 and scheduler.get_last_lr() == alone.get_last_lr()
    assert [group["lr"] for group in optimizer.param_groups] == alone.get_last_lr()


OF_A_FUNCTION = """
from torch.optim import Optimizer, SGD

def slow(weights, lr: float = 0.001) -> Optimizer:
    return SGD(weights, lr)
"""


def test_a_function_makes_an_optimizer_by_its_name_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "of_a_function.py").write_text(OF_A_FUNCTION)
    (tmp_path / "as_class.yaml").write_text("model: {optimizer: {class_path: of_a_function.slow}}")
    (tmp_path / "alone.yaml").write_text("model: {optimizer: of_a_function.slow}")
    monkeypatch.syspath_prepend(tmp_path)
    words = ("fit", "--config", ROOT / "configs" / "quickstart.yaml", "--config")
    made = built(*words, "alone.yaml", cwd=tmp_path).model.configure_optimizers()
    assert made["optimizer"].param_groups[0]["lr"] == 0.001
    with pytest.raises(UserError, match=r"got the function of_a_function\.slow.*`optimizer: of_a_function\.slow`"):
        built(*words, "as_class.yaml", cwd=tmp_path)
    with pytest.raises(SystemExit):
        built(*words, "alone.yaml", "--model.optimizer.lr", "0.5", cwd=tmp_path)
    assert "there is no option 'model.optimizer.lr'.\n       a function is given by its name" in capsys.readouterr().err


def test_a_fault_within_a_closure_is_not_blamed_on_the_optimizer():
    class Broken(torch.nn.Linear):
        def forward(self, x):
            if self.training:
                raise RuntimeError("of my own")
            return super().forward(x.flatten(1))

    with pytest.raises(RuntimeError, match="of my own"):
        fit(classifier({"net": Arm(net=lambda: Broken(3 * 32 * 32, 10))}), epochs=1)


def test_a_schedule_by_steps_does_not_go_on_by_epochs(tmp_path):
    save = ModelCheckpoint(tmp_path, filename="there", every_n_train_steps=4, save_top_k=1)
    fit(classifier(optimizer=sgd, **ONE_CYCLE), epochs=1, enable_checkpointing=True, callbacks=[save])
    with pytest.raises(UserError, match=r"went by steps, this configuration's model.scheduler_interval is 'epoch'"):
        trainer(2).fit(
            classifier(**ONE_CYCLE | {"scheduler_interval": "epoch"}),
            datamodule=digits(),
            ckpt_path=tmp_path / "there.ckpt",
        )


@pytest.mark.parametrize(
    "block", re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "optimizing.md").read_text(), re.DOTALL)
)
def test_the_examples_in_yaml_are_built(block, tmp_path):
    """With so few epochs and images that only the numbers of steps must fit: each example says how many it has."""
    (tmp_path / "example.yaml").write_text(block)
    words = ("fit", "--config", ROOT / "configs" / "quickstart.yaml", "--config", "example.yaml")
    made = built(*words, cwd=tmp_path).model.configure_optimizers()
    steps, rates = 10 * math.ceil(50_000 / 128), []
    for _ in range(steps):
        rates.append(made["optimizer"].param_groups[0]["lr"])
        made["optimizer"].step()
        made["lr_scheduler"]["scheduler"].step()
    assert made["lr_scheduler"]["interval"] == "step"
    assert (
        rates[0] < max(rates) / 20
        and rates[-1] < max(rates) / 1000
        and steps // 20 < rates.index(max(rates)) < steps // 3
    )


class Scaled(torch.optim.SGD):
    """It has what copies of torch's optimizers lack."""

    def __init__(self, weights):
        super().__init__(weights, lr=0.1)
        self.scale = 0.5


def test_a_schedule_that_no_copy_can_try_is_left_to_training_and_none_moves_the_random_state():
    optimizer = Scaled([torch.nn.Parameter(torch.zeros(2))])
    try_schedules(lambda of: LambdaLR(of, lambda epoch, scale=of.scale: scale), optimizer)
    state = torch.get_rng_state()
    try_schedules(lambda of: LambdaLR(of, lambda epoch: torch.rand(()).item()), optimizer)
    assert torch.equal(torch.get_rng_state(), state) and optimizer.param_groups[0]["lr"] == 0.1
    with pytest.raises(UserError, match="StepLR"):
        try_schedules(lambda of: StepLR(of, 0), optimizer)
