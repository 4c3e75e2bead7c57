"""The matrix of a convolution, entry by entry."""

import numpy as np

__all__ = ["conv_matrix"]


def conv_matrix(weight: np.ndarray, size: int, stride: int) -> np.ndarray:
    """(D Ho Ho, C H H) of a weight (D, C, U, U) on maps of H = ``size``, padded by U // 2.

    >>> conv_matrix(np.array([[[[1.0, 2.0, 3.0]] * 3]]), 1, 1)  # the middle alone reads the map
    array([[2.]])
    """
    outputs, inputs, window, _ = weight.shape
    pad = window // 2
    out_size = (size + 2 * pad - window) // stride + 1
    matrix = np.zeros((outputs, out_size, out_size, inputs, size, size))
    for i, j, u, v in np.ndindex(out_size, out_size, window, window):
        row, column = i * stride + u - pad, j * stride + v - pad
        if 0 <= row < size and 0 <= column < size:
            matrix[:, i, j, :, row, column] = weight[:, :, u, v]
    return matrix.reshape(outputs * out_size**2, inputs * size**2)
