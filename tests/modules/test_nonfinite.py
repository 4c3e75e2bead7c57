"""Planted faults are named rightly: step, member, place, part of the step, and the last finite values."""

import math
import re
from functools import partial

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn

from lightning_app.common.errors import DivergedError, UserError
from lightning_app.modules.backends import Pass
from lightning_app.modules.members import Arm
from lightning_app.modules.nonfinite import _all_finite, origin_of
from tests.helpers import arm, classifier, digits, fit, same_weights

STEP = 3  # at which a fault is planted, of four in an epoch


class Net(nn.Module):
    """Small, with something in its middle that can go wrong from a given step on."""

    def __init__(self, trap=lambda x: x):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=4)
        self.norm = nn.BatchNorm2d(4)
        self.trap = Trap(trap)
        self.second = nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(4, 10)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        return self.head((self.second(self.trap(x)) * self.scale).mean((2, 3)))


class Trap(nn.Module):
    def __init__(self, trap):
        super().__init__()
        self.trap, self.steps = trap, 0

    def forward(self, x):
        self.steps += self.training
        return self.trap(x) if self.steps >= STEP else x


class Plant(pl.Callback):
    """Changes the bad member, or the batch, before one step."""

    def __init__(self, change):
        self.change = change

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == STEP - 1:
            self.change(module.members[-1].net, *next(iter(batch.values())))


def fill(tensor, value, first=1):
    flat = tensor.data.flatten()  # a copy, in channels_last
    flat[:first] = value
    tensor.data.copy_(flat.view_as(tensor))


def frozen(net, name, value):
    net.norm.eval()
    fill(getattr(net.norm, name), value)


class InfiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.inf


def masked(x, rows):
    scores = torch.zeros_like(x).masked_fill(torch.arange(x.shape[-1], device=x.device) >= rows, -math.inf)
    return x * scores.softmax(-1)


def spoil(value, net, images, labels):
    images[5, 0, 2, 2] = value


NAN, INF = math.nan, math.inf
CHANGES = {  # what is written to the net or the batch -> what is named
    "a weight": (lambda net, *_: fill(net.second.weight, NAN), "weight, second.weight: in .* 1 of 144 not finite"),
    "a bias": (lambda net, *_: fill(net.head.bias, INF), "weight, head.bias: in .* 1 of 10 not finite"),
    "a factor of BatchNorm": (lambda net, *_: fill(net.norm.weight, NAN), "weight, norm.weight: .* 1 of 4 not finite"),
    "a buffer": (lambda net, *_: fill(net.scale, NAN), "buffer, scale: 1 of 1 not finite"),
    "a running mean": (lambda net, *_: frozen(net, "running_mean", NAN), "buffer, norm.running_mean: .* 1 of 4 not"),
    "a negative running variance": (
        lambda net, *_: frozen(net, "running_var", -1.0),
        r"forward pass, layer norm, batch_norm: input in .* norm.running_var in \[-1, ",
    ),
    "an exploding factor of BatchNorm": (
        lambda net, *_: fill(net.norm.weight, 3e38, 4),
        r"forward pass, layer norm, batch_norm: .* norm.weight in \[3e\+38, 3e\+38\].*float32 is 3.4e\+38",
    ),
    "a layer that overflows": (
        lambda net, *_: fill(net.second.weight, 3e38, 144),
        r"forward pass, layer second, conv2d: input in .* second.weight in \[3e\+38, 3e\+38\]",
    ),
}
TRAPS = {  # an operation in the net -> what is named
    "log of 0": (lambda x: (x * 0).log(), r"forward pass, layer trap, log: input in \[0, 0\]"),
    "0 by 0": (
        lambda x: (x * 0) / (x.mean() * 0),
        r"forward pass, layer trap, \w*div\w*: input in \[0, 0\], input in \[0, 0\]",
    ),
    "root of a negative": (lambda x: (x - 1).sqrt(), r"forward pass, layer trap, sqrt: input in \[-1, "),
    "exp": (lambda x: torch.exp(x + 100), r"forward pass, layer trap, exp: input in \[100, .*float32 is 3.4e\+38"),
    "a mask of everything": (lambda x: masked(x, 0), "forward pass, layer trap, masked_fill: "),
    "in place": (lambda x: x.clone().div_(0), r"forward pass, layer trap, div_: input in \[0, "),
    "a written entry": (lambda x: written(x), "forward pass, layer trap, __setitem__: "),
    "the gradient of a root": (lambda x: x + (x * 0).sqrt(), r"backward pass, layer trap, sqrt: gradient in \["),
    "the gradient behind where": (
        lambda x: x + torch.where(x - x.detach() > 0, (x - x.detach()).log(), 0.0),
        r"backward pass, layer trap, log: gradient in \[0, 0\]",
    ),
    "a gradient of one's own": (InfiniteGradient.apply, r"backward pass, layer trap.*: gradient in \["),
}
BATCHES = {
    "a pixel that is no number": (
        partial(spoil, NAN),
        r"data, images: sample 5 of the batch, in \[.*1 of \d+ not finite",
    ),
    "an infinite pixel": (partial(spoil, INF), r"data, images: sample 5 of the batch, in \[.*1 of \d+ not finite"),
    "no label at all": (lambda net, images, labels: labels.fill_(-100), "loss, the loss, cross_entropy: input in"),
}


def written(x):
    x = x.clone()
    x[0, 0] = INF
    return x


def named(bad=Net, what="the loss", *callbacks, **more):
    """The message, after the checks of all messages."""
    arms = {"good": Arm(net=Net), "bad": Arm(net=bad)}
    with pytest.raises(DivergedError) as raised:
        fit(classifier(arms, **more), epochs=1, callbacks=[*callbacks])
    message = str(raised.value)
    head = rf"{what} of member '(good|bad)' became NaN or infinite in epoch 1 \(step {STEP}\) at learning rate"
    assert re.match(head, message), message
    finite = re.search(r"Its last finite losses: (.*?)\. What was logged", message)[1].split(", ")
    assert len(finite) == STEP - (what == "the loss") and all(math.isfinite(float(loss)) for loss in finite)
    return message


@pytest.mark.parametrize("fault", CHANGES)
def test_what_was_written_to_a_net(fault):
    change, where = CHANGES[fault]
    message = named(Net, "the loss", Plant(change))
    assert "member 'bad'" in message and re.search(f"Where: {where}", message), message


@pytest.mark.parametrize("fault", TRAPS)
def test_an_operation(fault):
    trap, where = TRAPS[fault]
    message = named(partial(Net, trap), "a gradient" if where.startswith("backward") else "the loss")
    assert "member 'bad'" in message and re.search(f"Where: {where}", message), message


@pytest.mark.parametrize("fault", BATCHES)
def test_a_bad_batch(fault):
    """All members of a seed have it, and the first is named."""
    change, where = BATCHES[fault]
    message = named(Net, "the loss", Plant(change))
    assert "member 'good'" in message and re.search(f"Where: {where}", message), message


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
def test_a_label_that_is_no_class(loss):
    wrong = r"member 'good' cannot learn the batch of .*\(step 3\).*: sample 7 of the batch has label 10, and .* outputs 0 to 9"
    with pytest.raises(UserError, match=wrong):
        fit(
            classifier({"good": Arm(net=Net), "bad": Arm(net=Net)}, loss=loss),
            callbacks=[Plant(lambda net, images, labels: fill(labels[7:], 10))],
        )


def test_a_loss_of_ones_own():
    module = classifier({"good": Arm(net=Net)}, channels_last=False)
    calls = []

    def loss(logits, labels):
        calls.append(1)
        return -(logits.softmax(1) * (len(calls) < STEP)).log().mean()

    module.loss = loss
    with pytest.raises(DivergedError, match=r"\(step 3\).*Where: loss, the loss, log: input in \[0, 0\]"):
        fit(module, epochs=1)


def test_a_gradient_that_a_hook_changed():
    def change(net, *_):
        net.second.weight.register_hook(lambda gradient: gradient * INF)

    message = named(Net, "a gradient", Plant(change))
    assert "member 'bad'" in message and "Where: backward pass, second.weight (" in message and "hook" in message


def test_an_update_that_divides_0_by_0():
    """Adam without its epsilon, at weights that have never had a gradient."""
    dead = partial(Net, lambda x: x)
    module = classifier(
        {"good": Arm(net=Net), "bad": Arm(net=dead)},
        optimizer=partial(torch.optim.Adam, lr=1e-3, eps=0.0),
        weight_decay=0,
    )
    module.members[1].net.head.weight.data.zero_()
    module.members[1].net.head.weight.requires_grad_(False)
    where = r"a weight of member 'bad' .*\(step 1\).*Where: the optimizer's update, conv.weight .*Adam, the gradient was in \[0,"
    with pytest.raises(DivergedError, match=where):
        fit(module, epochs=1)


def test_an_update_that_overflows():
    module = classifier({"good": Arm(net=Net)}, optimizer=partial(torch.optim.SGD, lr=3e38), weight_decay=0)
    module.loss = lambda logits, labels: 1e4 * F.cross_entropy(logits, labels)
    with pytest.raises(
        DivergedError, match=r"\(step 1\) at learning rate 3e\+38.*Where: the optimizer's update, .*SGD, the gradient"
    ):
        fit(module, epochs=1)


def test_a_rate_that_is_much_too_big():
    """The losses before show it."""
    with pytest.raises(
        DivergedError, match=r"learning rate 1e\+06. Where: forward pass, layer .*smaller learning rate"
    ) as raised:
        fit(classifier({"plain": arm(False)}, optimizer=partial(torch.optim.SGD, lr=1e6)))
    losses = re.search(r"finite losses: (.*?)\. What", str(raised.value))[1].split(", ")
    assert float(losses[-1]) > 1e6 * float(losses[0])


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float16, "6.55e+04"), (torch.bfloat16, None)])
def test_a_half_overflows_where_others_do_not(dtype, largest):
    torch.manual_seed(0)
    net = Net()
    net.second.weight.data.fill_(3e4)
    each = Pass(net, torch.randn(8, 3, 32, 32).abs(), torch.arange(8), 0)
    with torch.autocast("cpu", dtype):
        origin = origin_of(each)
    if largest is None:
        assert origin.part == "unknown" and "everything was finite" in origin.values
    else:
        assert (origin.part, origin.where) == ("forward", "layer second, conv2d")
        assert origin.values.endswith(f"the largest float16 is {largest}")


@pytest.mark.parametrize("trap", [lambda x: x * 0, lambda x: masked(x, 1)], ids=["dead", "masked"])
def test_what_is_no_fault_is_not_named(trap):
    """A dead layer learns nothing and is finite; the infinities of a mask end in a softmax."""
    fit(classifier({"net": Arm(net=partial(Net, trap))}), epochs=1)


def test_large_is_not_infinite():
    large = torch.full((4,), 1e30)  # whose norm overflows
    assert not large.norm().isfinite() and _all_finite([large]) and not _all_finite([large, torch.tensor([NAN])])


@pytest.mark.parametrize(("every", "seen"), [(2, 4), (50, 4)])
def test_on_a_gpu_the_step_is_named_when_its_batch_is_gone(every, seen):
    """As with looks that are far apart; the second one sees it at the end of the epoch."""
    more = {"finite_every": every, "optimizer": partial(torch.optim.SGD, lr=0.1)}
    plant = Plant(lambda net, *_: fill(net.second.weight, NAN))
    said = rf"in step 3, seen in epoch 1 \(step {seen}\).*Where: the batch .* no longer there; now: .*--model.finite_every 1"
    with pytest.raises(DivergedError, match=said):
        fit(classifier({"net": Arm(net=Net)}, **more), callbacks=[plant], data=digits())


def test_a_net_that_cannot_be_watched_is_named_all_the_same():
    class Stubborn(Net):
        def __deepcopy__(self, memo):
            raise TypeError("not me")

    message = named(partial(Stubborn, lambda x: x / 0))
    assert "Where: the batch could not be run again: TypeError: not me" in message


@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 0.1}])
def test_training_is_the_same_however_often_one_looks(options):
    often, never = (fit(classifier(finite_every=every, **options)) for every in (1, 10**6))
    assert all(same_weights(one.net, other.net) for one, other in zip(often.members, never.members))


def test_looks_need_a_number_of_steps():
    with pytest.raises(UserError, match="finite_every: expected a number of steps of at least 1"):
        classifier(finite_every=0)
