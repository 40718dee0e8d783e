"""What holds of object stores, whichever client reaches them."""

from __future__ import annotations

from typing import Final

__all__ = ["ATTEMPT", "MAX_COPY_BYTES"]

#: S3 copies no larger object in one request.
MAX_COPY_BYTES: Final = 5 << 30
#: Metadata of a created object. A request whose answer was lost is sent again and then refused, because the object
#: exists: this says which writer's it is.
ATTEMPT: Final = "attempt"
