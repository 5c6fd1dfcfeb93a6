"""Credentials in addresses. They belong in the environment: whatever is a parameter ends up in manifests, names and logs."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+@")
_SECRET_VALUE = re.compile(
    r"([?&][^=&#\s]*(?:token|secret|passw|pwd|sig|signature|credential|key|auth)[^=&#\s]*=)[^&#\s]+", re.IGNORECASE
)


def without_credentials(address: str) -> str:
    """The address with passwords and the values of secret query parameters replaced by ``***``."""
    return _SECRET_VALUE.sub(r"\1***", _PASSWORD.sub(r"\1:***@", address))


def refuse_credentials(name: str, address: str) -> None:
    """Raises ValueError, which does not show it, where an address holds a credential."""
    shown = without_credentials(address)
    if shown != address:
        raise ValueError(
            f"{name}: {shown} holds a credential, which would end up in manifests and logs. Leave it out and put it into the "
            "environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or FSSPEC_<PROTOCOL>_<OPTION> for others."
        )
