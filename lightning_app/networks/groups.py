"""The shape that all CIFAR nets here share: three groups of blocks, each with twice the channels of the one before."""

from lightning_app.common.errors import UserError

__all__ = ["channels_of_blocks", "check_size"]


def check_size(depth: int, width: int, kind: str = "simplified", step: int = 3) -> None:
    """Refuse a depth other than ``step`` N + 2 with N >= 1 blocks a group, by a UserError with the nearest ones, or no width.

    ``kind`` is the net's name in the message, ``step`` what layers one more block in every group adds.
    """
    least = step + 2
    if depth < least or (depth - 2) % step:
        below = max(least, depth - (depth - 2) % step)
        nearest = f"{below}" if depth < least else f"{below} and {below + step}"
        raise UserError(
            f"a {kind} net has depth {step}N + 2 with N >= 1 ({least}, {least + step}, {least + 2 * step}, ...), got "
            f"{depth}. Nearest: {nearest}."
        )
    if width < 1:
        raise UserError(f"a net's width is at least 1 channel, got {width}.")


def channels_of_blocks(width: int, blocks: int) -> list[tuple[int, int, int]]:
    """(in_channels, out_channels, stride) of three groups of blocks: each group doubles the channels, halves the map.

    >>> channels_of_blocks(16, 1)
    [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
    """
    widths = [width * 2**group for group in range(3) for _ in range(blocks)]
    return [(before, now, 1 if before == now else 2) for before, now in zip([width, *widths], widths)]
