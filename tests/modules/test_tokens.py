"""A bank of transformers on tokens: each net as if alone, a resume in the middle of an epoch, and what does not fit.

Nets of transformers, on dict batches, are trained with the loss that they return.
"""

import pytest
import torch
import transformers
from pytorch_lightning.callbacks import ModelCheckpoint

from lightning_app.common.calls import takes
from lightning_app.common.errors import UserError
from lightning_app.datamodules import Digits, KHop, ModularAddition
from lightning_app.modules import Arm
from lightning_app.networks import GPT, ViT
from tests.data.my_project import MyTexts
from tests.helpers import classifier, digits, fit, same_weights, sgd, trainer

KINDS = {
    "GPT": (GPT, {"vocabulary": 12, "context": 3}, lambda: ModularAddition(modulus=11, batch_size=16)),
    "ViT": (ViT, {"image_size": 8, "patch": 4}, lambda: digits(image_size=8)),
}


def bank(kind: str, *skips: str, seeds=2):
    net, options, _ = KINDS[kind]

    def arm(skip: str) -> Arm:
        return Arm(net=lambda: net(**options, width=8, depth=1, heads=2, skip=skip))

    return classifier({skip: arm(skip) for skip in skips or ("none", "identity", "scaled")}, seeds=seeds)


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_is_the_same_net_alone_and_a_run_that_stopped_goes_on_as_the_one_that_did_not(kind, tmp_path):
    make = KINDS[kind][2]
    whole = fit(bank(kind), data=make())
    alone = fit(bank(kind, "scaled", seeds=[1]), data=make())
    assert same_weights(whole.nets["scaled-seed01"], alone.members[0].net)
    assert not same_weights(whole.nets["scaled-seed00"], whole.nets["identity-seed00"])
    save = ModelCheckpoint(tmp_path, filename="middle", every_n_train_steps=3, save_top_k=1)
    fit(bank(kind), epochs=1, data=make(), enable_checkpointing=True, callbacks=[save], max_steps=3)
    resumed = bank(kind)
    trainer(2).fit(resumed, datamodule=make(), ckpt_path=tmp_path / "middle.ckpt")
    assert all(same_weights(one.net, other.net) for one, other in zip(whole.members, resumed.members))


def test_risk_and_error_are_means_over_sequences():
    data = KHop(samples=70, test_samples=33, hops=1, length=8, batch_size=16)
    module = fit(classifier(net=lambda: GPT(4, 8, 8, 1, 2)), epochs=1, data=data)
    tokens, labels = data.of_split("test")
    with torch.no_grad():
        logits = module.members[0].net(tokens.long())
    numbers = module.metrics()["net"]
    assert numbers["test/risk"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-6)
    assert numbers["test/error"] == pytest.approx(float((logits.argmax(1) != labels).double().mean()))


@pytest.mark.parametrize(
    ("net", "data", "message"),
    [
        (lambda: GPT(5, 8), lambda: KHop(length=8), r"outputs \(5,\) for a sample, but the data have 4 classes"),
        (lambda: GPT(4, 8), lambda: KHop(length=9), r"cannot take samples of shape \(9,\) .*at most 8 tokens, got 9"),
        (lambda: GPT(10, 32), Digits, "cannot take samples of shape"),
        (ViT, lambda: KHop(length=8), "cannot take samples of shape"),
    ],
)
def test_a_net_that_does_not_fit_the_tokens_is_told_before_training(net, data, message):
    with pytest.raises(UserError, match=message):
        fit(classifier(net=net), data=data())


def test_a_net_that_takes_other_names_than_the_batches_have_is_told_what_to_yield():
    """Of training batches, which no probe_loader() could mend."""
    with pytest.raises(UserError, match=r"the forward of GPT takes x and not input_ids: let the datamodule yield"):
        fit(classifier(net=lambda: GPT(8, 6, 8, 1, 2)), data=MyTexts(3))


TINY = {"vocab_size": 8, "bos_token_id": 0, "eos_token_id": 0}
DRY = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
UNDROPPED = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_positions=6, n_embd=8, n_layer=1, n_head=2, **TINY, **DRY)
    )


def bert():
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(num_labels=3, vocab_size=8, **SIZES, **UNDROPPED)
    )


class Adapted(torch.nn.Module):
    """Hands its arguments on, as a PEFT model without a task type does."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def get_base_model(self):
        return self.net

    def forward(self, *args, **kwargs):
        return self.net(*args, **kwargs)


@pytest.mark.parametrize(("make", "classes"), [(gpt2, 0), (bert, 3), (lambda: Adapted(gpt2()), 0)])
def test_on_dict_batches_a_net_is_trained_with_the_loss_that_it_returns(make, classes):
    """Bit for bit what a loop by hand makes of it; risks are means over tokens that count, over all batches together."""
    data = MyTexts(classes)
    by_hand = classifier(net=make).members[0].net
    optimizer = sgd(by_hand.parameters())
    for _ in range(2):
        for batch in data.train_dataloader():
            optimizer.zero_grad()
            by_hand(**batch).loss.backward()
            optimizer.step()
    module = fit(classifier(net=make, weight_decay=0.0), data=data)
    assert same_weights(module.members[0].net, by_hand)
    (whole,) = torch.utils.data.DataLoader(data.val_dataloader().dataset, batch_size=24)
    with torch.no_grad():
        returned = by_hand.eval()(**whole)
    seen, said = (returned.logits, whole["labels"]) if classes else (returned.logits[:, :-1], whole["labels"][:, 1:])
    wrong = (seen.argmax(-1) != said)[said != -100]
    numbers = module.metrics()["net"]
    assert numbers["val/risk"] == pytest.approx(float(returned.loss), rel=1e-6)
    assert numbers["val/error"] == pytest.approx(float(wrong.double().mean()))


class InOrder(Adapted):
    def forward(self, *args):
        return self.net(*args)


def test_a_net_that_hands_on_no_names_cannot_be_given_labels():
    assert takes(Adapted(gpt2()), "labels") and not takes(InOrder(gpt2()), "labels")


def test_outputs_of_transformers_on_data_of_ours():
    """A pair (tokens, labels) has no names; the net's own loss is the cross-entropy."""
    data = KHop(samples=40, test_samples=20, hops=1, letters=3, length=6, batch_size=16)
    module = fit(classifier(net=bert), epochs=1, data=data)
    tokens, labels = data.of_split("test")
    with torch.no_grad():
        logits = module.members[0].net.eval()(tokens.long())
    assert isinstance(logits, torch.Tensor)
    expected = torch.nn.functional.cross_entropy(logits, labels)
    assert module.metrics()["net"]["test/risk"] == pytest.approx(float(expected), rel=1e-5)
