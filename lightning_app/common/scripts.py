"""Scripts of pages: as short as a browser needs them, and the one policy under which a page runs them."""

import base64
import hashlib
import re

__all__ = ["policy", "source", "squeezed"]

# What stays as it is in a script (texts, templates with templates one deep, regular expressions: no space after their first
# slash), comments, the last semicolon of a block, signs with the spaces around them, other spaces. "a - -b" is no "a--b".
TEMPLATE = r"`(?:\\.|\$\{(?:[^{}`]|`[^`]*`|\{[^{}]*\})*\}|[^`\\$]|\$(?!\{))*`"
LITERAL = rf"""\"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|{TEMPLATE}|/(?![ /*])(?:\\.|\[(?:\\.|[^]\n])*\]|[^/\n[])+/"""
TOKEN = re.compile(
    rf"({LITERAL})|//[^\n]*\s*|;\s*(?=\}})|\s*([=<>?:,;{{}}()[\]&|!*])\s*|(?<![+-])\s([-+/])\s(?![+-])|(\s)\s*"
)


def squeezed(text: str) -> str:
    """A script without what only its readers need; every statement in it ends with a semicolon or a brace."""
    short, before = TOKEN.sub(lambda found: next(filter(None, found.groups()), ""), text).strip(), ""
    while short != before:  # neighbours in one declaration, where neither braces nor texts with semicolons are between
        short, before = re.sub(r"(?<![\w(])const( ?[^;{}]*);const(?=[ [{]) ?", r"const\1,", short), short
    return short


def source(text: str) -> str:
    """How a policy names a script that may run: by its SHA-256."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(text: str) -> str:
    """What the page may load and run: its own styles, pictures that it makes of its panels, and this script."""
    allowed = ("style-src 'unsafe-inline'", "img-src data:", "connect-src data:", f"script-src {source(text)}")
    return "; ".join(["default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"])
