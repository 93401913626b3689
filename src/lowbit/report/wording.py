"""Numbers and names as text, safe inside HTML."""

from __future__ import annotations

import html
import math
from typing import Any

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def escaped(text: Any) -> str:
    """The text escaped for HTML elements and quoted attributes; what UTF-8 cannot encode becomes a question mark.

    >>> escaped('</script><img src=x onerror="alert(1)">')
    '&lt;/script&gt;&lt;img src=x onerror=&quot;alert(1)&quot;&gt;'
    """
    return html.escape(str(text).encode("utf-8", "replace").decode("utf-8"), quote=True)


def size(count: float) -> str:
    """Bytes with a unit and three significant digits.

    >>> size(90_871_234), size(999), size(1), size(999_960)
    ('90.9 MB', '999 bytes', '1 byte', '1.00 MB')
    """
    if abs(count) < 1000:
        return "1 byte" if count == 1 else f"{count:.0f} bytes"
    value, unit = float(count), 0
    while abs(value) >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f} {_UNITS[unit]}"


def decimal(value: float | None, digits: int = 4) -> str:
    """A number with this many significant digits; – for None.

    >>> decimal(0.99912345), decimal(None), decimal(float("inf")), decimal(-3.5e-9)
    ('0.9991', '–', '∞', '−3.5e-09')
    """
    if value is None or math.isnan(value):
        return "–" if value is None else "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{digits}g}".replace("-", "−", 1) if value < 0 else f"{value:.{digits}g}"


def times(ratio: float) -> str:
    """A ratio with the sign ×.

    >>> times(3.914), times(12.34)
    ('3.91×', '12.3×')
    """
    return f"{ratio:.{2 if ratio < 9.995 else 1}f}×" if math.isfinite(ratio) else f"{decimal(ratio)}×"
