"""Peers of the data loader augment as they should, and start-up loads the same pixels in all ways."""

import pytest
import torch

from benchmarks import data
from benchmarks.timing import Comparison
from lightning_app.common.errors import UserError


def test_every_loader_and_every_start_is_timed(found, monkeypatch):
    monkeypatch.setattr(data, "PIL_PEERS", {data.REFERENCE: 0})
    findings = found(data, "--images", "130", "--rounds", "1", "--files", "40", "--no-compile")
    assert [*findings.values["batches"].values] == [
        data.REFERENCE,
        data.V2,
        data.V2_BATCHES,
        "eager",
        "eager, channels_last",
    ]
    assert [line.goal for line in findings.lines if line.what.startswith("start-up")] == [100, 100]


def test_goals_are_against_the_fastest_peer():
    speeds = {"torchvision, 0 workers": 100.0, "torchvision, 1 workers": 50.0, "torchvision, 2 workers": 200.0}
    ours = dict.fromkeys(data.OURS, 8000.0) | {"eager": 2000.0}
    speeds |= {data.V2: 400.0, data.V2_BATCHES: 800.0}
    lines = data.speed_lines(Comparison({name: [value] for name, value in (speeds | ours).items()}, "images/s"))
    eager, *_, against_none, v2, v2_batches = lines
    assert (eager.against, eager.ratio.median, eager.met) == ("torchvision, 2 workers", 10, False)
    assert (against_none.against, against_none.ratio.median, against_none.goal) == (data.REFERENCE, 80, 75)
    assert (v2.ratio.median, v2_batches.ratio.median) == (20, 10)


def test_peers_draw_for_each_sample_and_normalise(root):
    module = data.cifar10(root)
    for name, loader in data.peers(module, images=64).items():
        if name in (data.REFERENCE, data.V2, data.V2_BATCHES):
            images, labels = next(iter(loader))
            assert images.shape == (64, 3, 32, 32) and images.dtype == torch.float32 and labels.dtype == torch.int64
            black = ((0 - torch.tensor(module.mean)) / torch.tensor(module.std)).view(1, 3, 1)
            padded = torch.isclose(images[:, :, 0], black, atol=1e-5).all(2).all(1)
            assert 0 < padded.sum() < 64, name  # some crops reach above the image, some do not


def test_without_augmentation_pictures_are_torchvisions_test_transform(root):
    module = data.cifar10(root)
    image, label = data.Pictures(module, "test")[7]
    pixels = module.splits.test_images[7].permute(2, 0, 1) / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (module.mean, module.std))
    torch.testing.assert_close(image, (pixels - mean) / std)
    assert label == 7


def test_start_up_reads_the_same_pixels_in_all_ways(root, tmp_path):
    module = data.cifar10(root)
    ways = data.start_up(tmp_path, module, files=40)
    assert [*ways] == [data.DECODED, data.CACHED, data.ARRAY_FILES]
    tree, arrays = (module.SOURCE.below(tmp_path / kind).read() for kind in ("tree", "arrays"))
    assert torch.equal(tree.train_images, arrays.train_images) and len(tree.train_images) == 36
    assert len(tree.test_images) == 4


def test_decoding_decodes(root, tmp_path):
    """A picture that is none any more is noticed."""
    module = data.cifar10(root)
    ways = data.start_up(tmp_path, module, files=40)
    (changed,) = (tmp_path / "tree" / "cifar10" / "train" / module.class_names[0]).glob("00000.jpg")
    ways[data.DECODED]()
    changed.write_bytes(b"no picture")
    with pytest.raises(UserError, match="cannot be decoded"):
        ways[data.DECODED]()
