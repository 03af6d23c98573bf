"""The pages of providers' terms of use, which limit the use of their replies."""

from __future__ import annotations

from urllib.parse import urlsplit

#: By the end of the API's host. Providers change their terms: only the page is named here.
_TERMS = {
    "openai.com": "https://openai.com/policies/",
    "anthropic.com": "https://www.anthropic.com/legal/commercial-terms",
    "googleapis.com": "https://ai.google.dev/gemini-api/terms",
    "mistral.ai": "https://mistral.ai/terms",
    "together.ai": "https://www.together.ai/terms-of-service",
    "together.xyz": "https://www.together.ai/terms-of-service",
    "fireworks.ai": "https://fireworks.ai/terms-of-service",
    "openrouter.ai": "https://openrouter.ai/terms",
    "x.ai": "https://x.ai/legal/terms-of-service-enterprise",
}


def terms_of(base_url: str) -> str:
    """Return a sentence with the terms of use that hold for the replies of an API."""
    host = urlsplit(base_url).hostname or base_url
    for end, page in _TERMS.items():
        if host == end or host.endswith(f".{end}"):
            return f"the terms of use of {host}: {page}"
    return f"the terms of use of {host}, and the licence of the model that it serves"
