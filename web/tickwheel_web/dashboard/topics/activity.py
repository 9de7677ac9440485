"""How many messages a second topics and groups have had since somebody looked before."""

from __future__ import annotations

from tickwheel.watching.activity import Activities
from tickwheel_web.dashboard.page import Viewed


async def activities(viewed: Viewed) -> Activities:
    """As far as the token may know."""
    if not viewed.rights.sees("query:*"):
        return Activities(None, None)
    return Activities(*await viewed.site.recent.figures(viewed.client, viewed.token, viewed.max_age_s))
