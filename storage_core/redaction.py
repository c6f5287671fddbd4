"""Hide passwords and tokens in URLs before they are shown."""

import re
from typing import Final

_MASK: Final = "***"
# A URL ends at a blank or a quote at the latest.
_WORD: Final = re.compile(r"""[^\s"']+""")
# The user, then the password up to the @. For a parser an unescaped slash in it ends the host, but
# a reader still sees a password; a number before the slash is a port.
_PASSWORD: Final = re.compile(
    r"""(://[^\s/?\#@:"']*):(?:[^\s/?\#"']*|(?!\d+[/;?\#])[^\s@"']+)@""", re.VERBOSE
)
_PARAMETER: Final = re.compile(
    r"""([;?&](?:sig(?==)
        |(?=[\w.-]*(?:token|secret|passw|signature|credential|access[._-]?key))[\w.-]++))
    =[^\s;&\#"'\\]+""",
    re.VERBOSE | re.IGNORECASE,
)
_SECRET_NAME: Final = re.compile(r"secret|passw|token|credential|access\.?key", re.IGNORECASE)


def has_password(url: str) -> bool:
    """Tell whether a URL, or a text with one, contains a password."""
    return any(_PASSWORD.search(_up_to_last_at(word[0])) for word in _WORD.finditer(url))


def without_secrets(text: str) -> str:
    """Return a text without passwords, tokens and signatures in URLs. It takes time linear in
    the text's length: the text may be hostile."""
    if "://" not in text:
        return text
    plain = _WORD.sub(_mask_passwords, text) if "@" in text else text
    return _PARAMETER.sub(rf"\1={_MASK}", plain)


def _mask_passwords(word: re.Match[str]) -> str:
    head = _up_to_last_at(word[0])
    return _PASSWORD.sub(rf"\1:{_MASK}@", head) + word[0][len(head) :]


def _up_to_last_at(word: str) -> str:
    """Return the part of a word with possible passwords. No password ends behind it."""
    return word[: word.rfind("@") + 1]


def is_secret_name(key: str) -> bool:
    """Whether a setting of that name is nobody's to read."""
    return _SECRET_NAME.search(key) is not None


# How the location of a tier begins (``store.tier_archive``): what it is read with stands in
# parentheses.
TIER_LOCATION: Final = re.compile(r"\barchive(?:\((?P<options>[^()]*)\))?\+")


def plain_places(text: str) -> str:
    """Return a text in which tiers are named by their places alone."""
    return TIER_LOCATION.sub("", text) if "archive" in text else text
