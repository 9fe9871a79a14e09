"""How every API struct behaves: camelCase on the wire, immutable in memory, defaults left out when written.

Owns the base class only. A struct names just the fields Draco uses; what a server sends beyond them is dropped on reading, so
a struct must never be written back over a whole object that others also write: use server-side apply or a patch.
"""

import msgspec


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all API structs. Equality is by value; change one with `msgspec.structs.replace`.

    They are trees and can never form a cycle, so the collector need not visit them: that halves the time to decode many.
    """
