"""Passwords and tokens in URLs, which are given to be used and not to be shown."""

import re
from typing import Final

_MASK: Final = "***"
# The user, then the password up to the @. An unescaped slash in it ends a URL's host for a parser,
# but not for who reads it; a number before the slash is a port.
_PASSWORD: Final = re.compile(
    r"""(://[^\s/?\#@:"']*):(?:[^\s/?\#"']*|(?!\d+[/;?\#])[^\s@"']+)@""", re.VERBOSE
)
_PARAMETER: Final = re.compile(
    r"""([;?&](?:sig|[\w.-]*(?:token|secret|passw|signature|credential|access[._-]?key)[\w.-]*))
    =[^\s;&\#"'\\]+""",
    re.VERBOSE | re.IGNORECASE,
)
_SECRET_NAME: Final = re.compile(r"secret|passw|token|credential|access\.?key", re.IGNORECASE)


def has_password(url: str) -> bool:
    """Whether a URL, or a text with one in it, says a password."""
    return "://" in url and _PASSWORD.search(url) is not None


def without_secrets(text: str) -> str:
    """Return a text whose URLs show neither passwords nor tokens nor signatures."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(rf"\1={_MASK}", _PASSWORD.sub(rf"\1:{_MASK}@", text))


def is_secret_name(key: str) -> bool:
    """Whether a setting of that name is nobody's to read."""
    return _SECRET_NAME.search(key) is not None
