"""A small GPT and a small ViT, plain or residual, to study identities in transformers.

A block is attention and a two-layer perceptron. Around each of the two there is an identity, or around none; a LayerNorm is
before it, after it, or nowhere. Queries, keys, values and the output map are separate linear layers, so that measures see each
of them. There is no dropout: the output is a function of weights and input.
"""

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError, at_least
from lightning_app.networks.layers import Layer, number_layers

Skip = Literal["none", "identity", "scaled"]
Norm = Literal["pre", "post", "none"]
Activation = Literal["gelu", "relu"]
MAPS = (nn.Conv2d, nn.Linear)
ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}
CHOICES = {"skip": get_args(Skip), "norm": get_args(Norm), "activation": tuple(ACTIVATIONS)}


class Attention(nn.Module):
    """Scaled dot-product attention of several heads (Vaswani et al. 2017), (B, T, d) -> (B, T, d).

    Args:
        width: d.
        heads: number of heads, which divides d.
        causal: a token sees only itself and those before it.
    """

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)  # (B, heads, T, d / heads)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Branch(nn.Module):
    """One map with its norm and skip: ``x + a map(norm(x))`` (norm "pre"), ``norm(x + a map(x))`` ("post"), (B, T, d).

    Args:
        width: d.
        map: a module (B, T, d) -> (B, T, d).
        skip: "none" leaves out x; "identity" has a = 1, "scaled" a = 1 / sqrt(branches).
        norm: position of the LayerNorm, or "none".
        branches: number of branches in the whole net.
    """

    def __init__(self, width: int, map: nn.Module, skip: Skip, norm: Norm, branches: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width) if norm == "pre" else nn.Identity()
        self.map = map
        self.after = nn.LayerNorm(width) if norm == "post" else nn.Identity()
        self.skip = skip
        self.scale = branches**-0.5 if skip == "scaled" else 1.0

    def forward(self, x: Tensor) -> Tensor:
        out = self.map(self.before(x))
        if self.skip == "scaled":
            out = out * self.scale
        return self.after(out if self.skip == "none" else x + out)


class TokenEmbedding(nn.Module):
    """Learned vectors of tokens and of their positions, (B, T) -> (B, T, width), as in Radford et al. (2019)."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.empty(context, width))

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] > len(self.places):
            raise UserError(
                f"this GPT takes at most {len(self.places)} tokens, got {tokens.shape[1]}: set the net's context to at least "
                "that."
            )
        return self.tokens(tokens) + self.places[: tokens.shape[1]]


class PatchEmbedding(nn.Module):
    """A linear map of patches, and learned positions, (B, C, H, W) -> (B, T, width), as in Dosovitskiy et al. (2021)."""

    def __init__(self, image_size: int, patch: int, channels: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.places = nn.Parameter(torch.empty((image_size // patch) ** 2, width))
        self.size = image_size

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        if (height, width) != (self.size, self.size):  # one patch would be added to all places, others cut off
            raise UserError(
                f"this ViT takes images of {self.size} x {self.size} pixels, got {height} x {width}: set image_size of the net, "
                "or of the data, so that they agree."
            )
        return self.patches(images).flatten(2).transpose(1, 2) + self.places


class Transformer(nn.Module):
    """Embedding, blocks and readout: logits (B, classes), from the last token if causal, else from the mean of all.

    ``skip`` "none" is a plain net; "identity" is the usual one; "scaled" multiplies each branch by 1 / sqrt(2 depth), which
    keeps the size of the stream independent of depth (Hayou et al. 2021, "Stable ResNet": 1 / sqrt of the number of branches,
    which are two per block here). It adds no parameters, so all three have the same parameters.

    Matrices are N(0, 1 / inputs) and biases 0; tokens and positions are N(0, 1/2), so that their sum has variance 1. With
    ``norm`` "pre" there is also a LayerNorm before the readout, since nothing else normalises the stream.

    Args:
        embedding: maps the input to (B, T, width).
        width: d, a multiple of heads.
        depth: number of blocks, each of attention and perceptron.
        heads: attention heads per block.
        classes: number of logits.
        causal: a token sees only itself and those before it.
        skip: skip around attention and perceptron: "none", "identity" or "scaled".
        norm: LayerNorm before the branch ("pre"), after the sum ("post"), or "none".
        activation: activation of the perceptron.
        hidden: number of the perceptron's inner units; None for 4 d.

    Raises:
        UserError: for a size below 1, a width that heads does not divide, or an unknown skip, norm or activation.
    """

    def __init__(
        self,
        embedding: nn.Module,
        width: int,
        depth: int,
        heads: int,
        classes: int,
        causal: bool,
        skip: Skip = "identity",
        norm: Norm = "pre",
        activation: Activation = "gelu",
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        at_least(1, who, heads=heads, depth=depth, classes=classes)
        if width % heads:
            raise UserError(f"width must be a multiple of heads, got {width} and {heads}.")
        for name, value in {"skip": skip, "norm": norm, "activation": activation}.items():
            if value not in CHOICES[name]:
                raise UserError(f"{name} must be one of {', '.join(CHOICES[name])}, got {value!r}.")
        self.residual = skip != "none"
        self.causal = causal
        inner = 4 * width if hidden is None else at_least(1, who, hidden=hidden)

        def block() -> nn.Module:
            perceptron = nn.Sequential(nn.Linear(width, inner), ACTIVATIONS[activation](), nn.Linear(inner, width))
            maps = Attention(width, heads, causal), perceptron
            return nn.Sequential(*(Branch(width, map, skip, norm, 2 * depth) for map in maps))

        self.embedding = embedding
        self.blocks = nn.Sequential(*(block() for _ in range(depth)))
        self.last_norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()
        self.readout = nn.Linear(width, classes)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        for layer in self.modules():
            if isinstance(layer, MAPS):
                nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
                nn.init.zeros_(layer.get_parameter("bias"))
        for name, vectors in self.embedding.named_parameters():
            if name in ("tokens.weight", "places"):
                nn.init.normal_(vectors, std=0.5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.last_norm(self.blocks(self.embedding(x)))  # (B, T, width)
        return self.readout(stream[:, -1] if self.causal else stream.mean(1))

    def layers(self) -> tuple[Layer, ...]:
        """Embedding of tokens, convolution and linear maps in forward order, the readout last. A skip goes around several
        of them, so ``skip`` is False for all."""
        kinds = (nn.Embedding, *MAPS)
        return number_layers(self, [name for name, each in self.named_modules() if isinstance(each, kinds)])

    def block_list(self) -> list[nn.Module]:
        """Attention and perceptron of each block in forward order, each with its norm and skip."""
        return [module for module in self.blocks.modules() if isinstance(module, Branch)]


class GPT(Transformer):
    """A causal transformer that predicts the token after the last, (B, T) int64 -> logits (B, vocabulary).

    The readout is not tied to the embedding.

    Args:
        vocabulary: number of tokens, and of classes.
        context: the longest sequence, T.
        width: d.
        depth: blocks.
        heads: attention heads per block.
        of_blocks: ``skip``, ``norm``, ``activation`` and ``hidden`` of `Transformer`.
    """

    def __init__(
        self,
        vocabulary: int = 256,
        context: int = 64,
        width: int = 64,
        depth: int = 4,
        heads: int = 4,
        **of_blocks: Any,
    ) -> None:
        at_least(1, type(self).__name__, vocabulary=vocabulary, context=context, width=width)
        embedding = TokenEmbedding(vocabulary, context, width)
        super().__init__(embedding, width, depth, heads, vocabulary, True, **of_blocks)


class ViT(Transformer):
    """A transformer on patches of images, (B, C, H, W) -> logits (B, num_classes) of the mean over all patches.

    The mean, instead of a class token, is Beyer et al.'s (2022, "Better plain ViT baselines for ImageNet-1k").

    Args:
        image_size: height and width of the images.
        patch: side of a patch, which divides it.
        in_channels: C.
        num_classes: number of logits.
        width: d.
        depth: blocks.
        heads: attention heads per block.
        of_blocks: ``skip``, ``norm``, ``activation`` and ``hidden`` of `Transformer`.
    """

    def __init__(
        self,
        image_size: int = 32,
        patch: int = 4,
        in_channels: int = 3,
        num_classes: int = 10,
        width: int = 64,
        depth: int = 4,
        heads: int = 4,
        **of_blocks: Any,
    ) -> None:
        at_least(1, type(self).__name__, image_size=image_size, patch=patch, width=width)
        if image_size % patch:
            raise UserError(f"image_size must be a multiple of patch, got {image_size} and {patch}.")
        embedding = PatchEmbedding(image_size, patch, in_channels, width)
        super().__init__(embedding, width, depth, heads, num_classes, False, **of_blocks)
