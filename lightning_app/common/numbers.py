"""Numbers as text, for pages, tables and messages."""

import math
from collections.abc import Sequence

MISSING = "–"
IN_FULL = 1e7  # integers below have all their digits
MOST = 1e15  # a float of more digits has no units
ROUNDING = 1e-14  # a standard deviation below this share of its mean is of equal values, whose mean was rounded


def number(value: float) -> str:
    """For columns of a table: four significant digits with trailing zeros; whole numbers and thousands in full.

    >>> [number(x) for x in (0.1131, 0.05, 624.0, 25032.7, 6.2e-5, 4.25e36, float("nan"), float("inf"))]
    ['0.1131', '0.05000', '624', '25033', '6.200e-05', '4.250e+36', 'nan', 'inf']
    >>> number(999.96), number(-0.0)
    ('1000', '0')
    """
    if not math.isfinite(value):
        return str(float(value))
    if abs(value) >= MOST:
        return f"{value:.3e}"
    value += 0.0  # no -0
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:#.4g}".rstrip(".")


def with_sd(mean: float, sd: float) -> str:
    """Mean and standard deviation, that with two significant digits; the mean alone where there is none.

    >>> with_sd(0.8, 0.0), with_sd(1234.5, 47.2), with_sd(math.inf, math.nan)
    ('0.8000 ± 0.0', '1234 ± 47', 'inf')
    """
    sd = unrounded(mean, sd)
    return f"{number(mean)} ± {f'{sd:#.2g}'.rstrip('.')}" if math.isfinite(sd) else number(mean)


def brief(value: float | str | None, digits: int = 4, sd: float | None = None) -> str:
    """For text: no trailing zeros; numbers with more digits than these in full, up to ten million; words unchanged.

    Args:
        value: None or NaN: missing.
        digits: significant ones.
        sd: standard deviation, shown behind the number.

    >>> brief(0.07227), brief("76 %"), brief(None), brief(25033.2), brief(2.7e-7), brief(4.25e12)
    ('0.07227', '76 %', '–', '25033', '2.7e-07', '4.25e+12')
    >>> brief(0.6, sd=0.1414), brief(0.1, sd=1.7e-17)
    ('0.6 ± 0.14', '0.1 ± 0')
    >>> brief(9999.7), brief(99.6, 2), brief(-0.0)
    ('10000', '100', '0')
    """
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return MISSING
    value += 0.0  # no -0
    text = f"{value:.0f}" if 10**digits - 0.5 <= abs(value) < IN_FULL else f"{value:.{digits}g}"
    return text if sd is None or math.isnan(sd) else f"{text} ± {unrounded(value, sd):.2g}"


def unrounded(mean: float, sd: float) -> float:
    """A standard deviation, or 0 if it comes from rounding only.

    >>> unrounded(0.8, 1.4e-16), unrounded(0.8, 1e-9)
    (0.0, 1e-09)
    """
    return 0.0 if sd < ROUNDING * abs(mean) else sd


def span(values: Sequence[float], digits: int) -> str:
    """Smallest to largest; once where they are alike.

    >>> span([0.0583, 0.912], 2), span([0.9, 0.899], 2)
    ('0.058 to 0.91', '0.9')
    """
    low, high = (brief(end, digits) for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def plural(count: int, what: str) -> str:
    """A number of things, with an s for all but one.

    >>> plural(1, "run"), plural(0, "net")
    ('1 run', '0 nets')
    """
    return f"{count} {what}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """A time of two or three digits.

    >>> [duration(seconds) for seconds in (0.25, 7.24, 100, 133, 5000, 36_000)]
    ['0.2 s', '7.2 s', '100 s', '2.2 min', '83 min', '10 h']
    """
    unit, size = ("h", 3600) if seconds >= 7200 else ("min", 60) if seconds >= 120 else ("s", 1)
    return f"{seconds / size:.{int(seconds < 10 * size)}f} {unit}"


def whole(value: float) -> float:
    """A whole number as an int, so that it is written without a point.

    >>> whole(2.0), whole(2.25)
    (2, 2.25)
    """
    return int(value) if value % 1 == 0 else value


def epoch_text(value: float) -> str:
    """An epoch, in full where it is whole; fractions, as of measurements within one, with four digits.

    >>> epoch_text(12345.0), epoch_text(4 / 3), epoch_text(1000.25), epoch_text(0.123456), epoch_text(2.5e-5)
    ('12345', '1.3333', '1000.25', '0.1235', '2.5e-05')
    """
    return str(whole(round(value, 4))) if value >= 1 else f"{value:.4g}"


def interval(middle: float, low: float, high: float, digits: int = 4) -> str:
    """A number and the interval it lies in.

    >>> interval(1.5, 1.0, 2.0)
    '1.5 [1, 2]'
    """
    return "{:.{n}g} [{:.{n}g}, {:.{n}g}]".format(middle, low, high, n=digits)
